// Runs for tests of queries: tensors with real contents, their statistics computed the plain way,
// written into a store.
#ifndef STATCOLLECT_TESTS_SERVER_QUERY_RUN_WRITER_H_
#define STATCOLLECT_TESTS_SERVER_QUERY_RUN_WRITER_H_

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/names.h"
#include "common/records.h"
#include "server/store/store.h"
#include "tests/support/append_batch.h"

namespace statcollect::testing {

struct Tensor {
  std::vector<double> values;
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;  // empty: one dimension
  std::uint32_t samples = 0;        // first elements that are kept

  std::vector<std::int64_t> Shape() const {
    return shape.empty() ? std::vector<std::int64_t>{static_cast<std::int64_t>(values.size())}
                         : shape;
  }
};

inline std::uint64_t MixBits(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

inline TensorStats StatsOf(const Tensor& tensor) {
  TensorStats s;
  s.numel = tensor.values.size();
  double sum = 0, squares = 0;
  std::uint64_t finite = 0;
  for (std::size_t i = 0; i < tensor.values.size(); ++i) {
    const double x = tensor.values[i];
    s.hash += MixBits(std::bit_cast<std::uint64_t>(x) + MixBits(i + 1));
    if (std::isnan(x)) {
      ++s.nan;
    } else if (std::isinf(x)) {
      ++(x > 0 ? s.pos_inf : s.neg_inf);
    } else {
      ++(x == 0 ? s.zero : x < 0 ? s.neg : s.pos);
      s.min = finite == 0 ? x : std::min(s.min, x);
      s.max = finite == 0 ? x : std::max(s.max, x);
      sum += x;
      s.l1 += std::abs(x);
      squares += x * x;
      ++finite;
    }
  }
  s.has_finite = finite > 0;
  if (!s.has_finite) return s;
  s.mean = sum / static_cast<double>(finite);
  double spread = 0;
  for (const double x : tensor.values) spread += std::isfinite(x) ? (x - s.mean) * (x - s.mean) : 0;
  s.std = std::sqrt(spread / static_cast<double>(finite));
  s.l2 = std::sqrt(squares);
  return s;
}

// As the data model says: a sign for each element, a sum for each group of 16, both by hash.
inline std::vector<double> SketchOf(const Tensor& tensor, std::uint32_t k) {
  std::vector<double> sums(k, 0.0);
  for (std::size_t i = 0; k > 0 && i < tensor.values.size(); ++i) {
    if (!std::isfinite(tensor.values[i])) continue;
    const double sign = (MixBits(i * 2 + 1) & 1) != 0 ? 1 : -1;
    sums[MixBits(i / 16 + 77) % k] += sign * tensor.values[i];
  }
  return sums;
}

inline TensorKey Key(std::string name, Kind kind = Kind::kOutput, std::string path = "",
                     std::uint32_t micro_batch = 0, std::uint32_t call = 0,
                     Mode mode = Mode::kTrain) {
  return {.name = std::move(name),
          .kind = kind,
          .output_path = std::move(path),
          .micro_batch = micro_batch,
          .call = call,
          .mode = mode};
}

// One launch of a run. Collects records, then writes them with Commit, which may be called again.
class RunWriter {
 public:
  RunWriter(Store& store, const std::string& run, std::uint32_t world_size = 1,
            std::uint32_t sketch = 16)
      : store_(store), run_(run), sketch_(sketch) {
    auto made = store.CreateAttempt(
        {.run = run, .launch = "l", .world_size = world_size, .start_unix_nanos = 1000});
    assert(made.ok());
    attempt_ = *made;
  }

  // As an agent with another definition of hash and sketch writes: other hashes, other sketches.
  RunWriter& UseHashKind(HashKind kind) {
    hash_kind_ = kind;
    return *this;
  }
  // As an import of a tool that does not record them; of tensors observed from now on.
  RunWriter& Without(std::initializer_list<Statistic> absent) {
    for (const Statistic statistic : absent) absent_ |= BitOf(statistic);
    return *this;
  }
  RunWriter& Observe(std::uint32_t rank, std::uint64_t step, const TensorKey& key,
                     const Tensor& tensor) {
    Rank& r = ranks_[rank];
    StatColumns& c = r.batch.stats;
    c.sketch_width = sketch_;
    c.activation.push_back(Intern(r, key));
    c.layout.push_back(Intern(r, tensor));
    c.step.push_back(step);
    c.order.push_back(ordered_ ? r.next_order[step]++ : 0);
    c.stats.push_back(StatsOf(tensor));
    if (hash_kind_ != HashKind::kContent3) c.stats.back().hash = MixBits(c.stats.back().hash + 1);
    for (const double plain : SketchOf(tensor, sketch_)) {
      const double sum = hash_kind_ != HashKind::kContent3 ? -plain : plain;
      c.sketch.push_back(narrow_sketches_ && !HasWideSketch(tensor.dtype) ? static_cast<float>(sum)
                                                                          : sum);
    }
    c.sample_count.push_back(tensor.samples);
    c.samples.insert(c.samples.end(), tensor.values.begin(),
                     tensor.values.begin() + tensor.samples);
    r.stat_steps.insert(step);
    Extend(r, step);
    return *this;
  }
  // A record as an agent computed it, with a layout of its own, whose id is set here.
  RunWriter& Record(std::uint32_t rank, std::uint64_t step, const TensorKey& key, Layout layout,
                    const TensorStats& stats, const std::vector<double>& sketch) {
    Rank& r = ranks_[rank];
    StatColumns& c = r.batch.stats;
    assert(sketch.size() == sketch_);
    c.sketch_width = sketch_;
    c.activation.push_back(Intern(r, key));
    c.layout.push_back(Intern(r, std::move(layout)));
    c.step.push_back(step);
    c.order.push_back(ordered_ ? r.next_order[step]++ : 0);
    c.stats.push_back(stats);
    c.sketch.insert(c.sketch.end(), sketch.begin(), sketch.end());
    c.sample_count.push_back(0);
    r.stat_steps.insert(step);
    Extend(r, step);
    return *this;
  }
  RunWriter& Scalar(std::uint32_t rank, std::uint64_t step, const std::string& name, double value,
                    std::uint32_t micro_batch = 0) {
    ranks_[rank].batch.scalars.push_back({name, step, micro_batch, value});
    Extend(ranks_[rank], step);
    return *this;
  }
  RunWriter& Memory(std::uint32_t rank, MemoryRecord record) {
    Extend(ranks_[rank], record.step);
    ranks_[rank].batch.memory.push_back(std::move(record));
    return *this;
  }
  RunWriter& Density(std::uint32_t rank, DensityRecord record) {
    Extend(ranks_[rank], record.step);
    ranks_[rank].batch.densities.push_back(std::move(record));
    return *this;
  }
  // Of a tensor that was observed there.
  RunWriter& Exponents(std::uint32_t rank, std::uint64_t step, const TensorKey& key,
                       const Tensor& tensor, std::int32_t lowest,
                       std::vector<std::uint64_t> counts) {
    Rank& r = ranks_[rank];
    r.batch.exponents.push_back({.step = step,
                                 .activation = Intern(r, key),
                                 .layout = Intern(r, tensor),
                                 .lowest = lowest,
                                 .counts = std::move(counts)});
    Extend(r, step);
    return *this;
  }
  RunWriter& Tokens(std::uint32_t rank, TokenRecord record) {
    Rank& r = ranks_[rank];
    const std::uint64_t step = record.step;
    r.batch.tokens.push_back(std::move(record));
    Extend(r, step);
    return *this;
  }
  RunWriter& Event(std::uint32_t rank, std::uint64_t step, const std::string& kind,
                   const std::string& text = "", std::map<std::string, std::string> fields = {}) {
    ranks_[rank].batch.events.push_back(
        {.kind = kind, .step = step, .unix_nanos = 5, .text = text, .fields = std::move(fields)});
    return *this;
  }
  RunWriter& Config(std::uint32_t rank, std::map<std::string, std::string> config) {
    ranks_[rank].meta.info.config = std::move(config);
    return *this;
  }
  RunWriter& Dropped(std::uint32_t rank, std::uint64_t count) {
    ranks_[rank].meta.dropped["buffer_full"] = count;
    return *this;
  }
  // The module observed next is the model itself.
  RunWriter& Root() {
    next_is_root_ = true;
    return *this;
  }
  // Modules whose class is not known are never aligned by order.
  RunWriter& WithoutClasses() {
    class_name_.clear();
    return *this;
  }
  // The class of the modules observed from now on.
  RunWriter& OfClass(std::string name) {
    class_name_ = std::move(name);
    return *this;
  }
  // The rank's step got no end: it died in it, or is still in it.
  RunWriter& NoStepEnd(std::uint32_t rank, std::uint64_t step) {
    ranks_[rank].without_end.insert(step);
    return *this;
  }
  // As a tool that does not record the order of execution writes.
  RunWriter& WithoutOrder() {
    ordered_ = false;
    return *this;
  }
  // Sums as wide as an agent sends them.
  RunWriter& NarrowSketches() {
    narrow_sketches_ = true;
    return *this;
  }
  RunWriter& Unfinished(std::uint32_t rank) {
    ranks_[rank].finished = false;
    return *this;
  }

  AttemptId Commit() {
    for (auto& [rank, r] : ranks_) {
      for (const std::uint64_t step : r.open_steps) {
        if (!r.without_end.contains(step))
          r.batch.steps.push_back({step, static_cast<std::int64_t>(step % 1000000 * 1000), 1});
      }
      r.open_steps.clear();
      r.batch.first_seq = r.meta.durable_seq + 1;
      r.meta.info.run = run_;
      r.meta.info.rank = rank;
      r.meta.info.world_size = attempt_.world_size;
      r.meta.info.host = "node" + std::to_string(rank);
      r.meta.info.pid = 100 + rank;
      r.meta.durable_seq += r.batch.records();
      r.meta.records += r.batch.records();
      r.meta.stat_records += r.batch.stats.size();
      r.meta.steps = r.stat_steps.size();
      r.meta.last_write_unix_nanos = 9000 + rank;
      r.meta.finished = r.finished;
      const Status written = AppendBatch(store_, attempt_.id, rank, r.batch, r.meta);
      assert(written.ok());
      (void)written;
      r.batch = RecordBatch();
    }
    return attempt_.id;
  }

 private:
  struct Rank {
    RecordBatch batch;
    RankMeta meta;
    std::map<TensorKey, std::uint32_t> ids;
    std::vector<Layout> layouts;
    std::map<std::uint64_t, std::uint32_t> next_order;
    std::set<std::uint64_t> stat_steps, open_steps, without_end;
    bool finished = true;
  };

  static void Extend(Rank& r, std::uint64_t step) {
    r.open_steps.insert(step);
    r.meta.first_step = std::min(r.meta.first_step.value_or(step), step);
    r.meta.last_step = std::max(r.meta.last_step.value_or(step), step);
  }
  std::uint32_t Intern(Rank& r, const TensorKey& key) {
    const auto [entry, fresh] = r.ids.try_emplace(key, static_cast<std::uint32_t>(r.ids.size()));
    if (fresh) {
      const std::size_t dot = key.name.rfind('.');
      r.batch.activations.push_back(
          {.id = entry->second,
           .key = key,
           .parent = dot == std::string::npos ? "" : key.name.substr(0, dot),
           .class_name = class_name_,
           .depth = next_is_root_ ? 1
                                  : 2 + static_cast<std::int32_t>(
                                            std::count(key.name.begin(), key.name.end(), '.'))});
    }
    next_is_root_ = false;
    return entry->second;
  }
  std::uint32_t Intern(Rank& r, const Tensor& tensor) const {
    return Intern(r, Layout{.dtype = tensor.dtype,
                            .shape = tensor.Shape(),
                            .absent = absent_,
                            .hash_kind = hash_kind_});
  }
  static std::uint32_t Intern(Rank& r, Layout layout) {
    for (const Layout& known : r.layouts) {
      layout.id = known.id;
      if (known == layout) return known.id;
    }
    layout.id = static_cast<std::uint32_t>(r.layouts.size());
    r.layouts.push_back(layout);
    r.batch.layouts.push_back(layout);
    return layout.id;
  }

  HashKind hash_kind_ = HashKind::kContent3;
  std::uint32_t absent_ = 0;
  Store& store_;
  std::string run_;
  std::uint32_t sketch_;
  bool narrow_sketches_ = false, next_is_root_ = false, ordered_ = true;
  std::string class_name_ = "Module";
  AttemptMeta attempt_;
  std::map<std::uint32_t, Rank> ranks_;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_QUERY_RUN_WRITER_H_
