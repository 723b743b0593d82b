// A scan of FakeStore.
#ifndef STATCOLLECT_TESTS_SUPPORT_FAKE_SCAN_H_
#define STATCOLLECT_TESTS_SUPPORT_FAKE_SCAN_H_

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <tuple>
#include <utility>
#include <vector>

#include "server/store/store.h"

namespace statcollect::testing {

// Calls `on_block` for each block that it hands out.
class FakeScan final : public StatScan {
 public:
  explicit FakeScan(std::function<void()> on_block) : on_block_(std::move(on_block)) {}
  // One block a record: nothing may depend on how records are grouped into blocks of a step.
  void Add(const StatColumns& columns, std::size_t i) {
    StatBlock block{.step = columns.step[i], .columns = {}};
    block.columns.activation = {columns.activation[i]};
    block.columns.layout = {columns.layout[i]};
    block.columns.step = {columns.step[i]};
    block.columns.order = {columns.order[i]};
    block.columns.stats = {columns.stats[i]};
    block.columns.sketch_width = columns.sketch_width;
    const auto sketch = columns.SketchOf(i);
    block.columns.sketch.assign(sketch.begin(), sketch.end());
    const std::size_t samples = i < columns.sample_count.size() ? columns.sample_count[i] : 0;
    block.columns.sample_count = {static_cast<std::uint32_t>(samples)};
    std::size_t first = 0;
    for (std::size_t j = 0; samples > 0 && j < i; ++j) first += columns.sample_count[j];
    for (std::size_t j = 0; j < samples; ++j)
      block.columns.samples.push_back(columns.samples[first + j]);
    blocks_.push_back(std::move(block));
  }
  bool NextHead() override {
    if (next_ == 0) {
      std::sort(blocks_.begin(), blocks_.end(), [](const StatBlock& a, const StatBlock& b) {
        return std::tie(a.step, a.columns.activation) < std::tie(b.step, b.columns.activation);
      });
    }
    if (next_++ >= blocks_.size()) return false;
    on_block_();
    const StatBlock& block = blocks_[next_ - 1];
    head_ = {.step = block.step,
             .activation = block.columns.activation[0],
             .records = 1,
             .digest = DigestOf(block.columns)};
    return true;
  }
  const BlockHead& head() const override { return head_; }
  bool Load(bool sketches, StatColumns* columns) override {
    *columns = blocks_[next_ - 1].columns;
    if (sketches) return true;
    columns->sketch_width = 0;
    columns->sketch.clear();
    return true;
  }
  bool LoadHashes(HashColumns* columns) override {
    *columns = HashesOf(blocks_[next_ - 1].columns);
    return true;
  }
  const NumberColumns* Columns() override {
    view_.Fill(blocks_[next_ - 1].columns);
    return &view_.columns;
  }
  const Status& status() const override { return status_; }
  std::uint64_t bytes_read() const override { return next_ * sizeof(StatBlock); }

 private:
  // A block of one record as columns.
  struct View {
    NumberColumns columns;
    std::vector<std::uint64_t> numbers;

    void Fill(const StatColumns& block) {
      const TensorStats& s = block.stats[0];
      const auto bits = [](double value) { return std::bit_cast<std::uint64_t>(value); };
      const auto sign = [&](double value, Flag flag) {
        return bits(value) > kMagnitude ? std::uint64_t{flag} : 0;
      };
      const std::uint64_t flags = sign(s.mean, kNegativeMean) | sign(s.min, kNegativeMin) |
                                  sign(s.max, kNegativeMax) | sign(s.std, kNegativeStd) |
                                  sign(s.l2, kNegativeL2) |
                                  (s.has_finite ? std::uint64_t{kHasFinite} : 0);
      const auto real = [&](double value) { return bits(value) & kMagnitude; };
      numbers = {
          block.activation[0], block.layout[0], block.order[0], flags,       s.numel, s.nan,
          s.pos_inf,           s.neg_inf,       s.zero,         s.neg,       s.pos,   real(s.mean),
          real(s.std),         real(s.l2),      real(s.min),    real(s.max), s.hash};
      columns.size = 1;
      columns.sketch_width = block.sketch_width;
      columns.sketch = block.sketch.data();
      const std::uint64_t* at = numbers.data();
      for (const std::uint64_t** to :
           {&columns.activation, &columns.layout, &columns.order, &columns.flags, &columns.numel,
            &columns.nan, &columns.pos_inf, &columns.neg_inf, &columns.zero, &columns.neg,
            &columns.pos, &columns.mean, &columns.std, &columns.l2, &columns.min, &columns.max,
            &columns.hash})
        *to = at++;
    }
  };

  // Of one record. FNV-1a over its numbers, twice.
  static BlockDigest DigestOf(const StatColumns& c) {
    const TensorStats& s = c.stats[0];
    std::vector<std::uint64_t> numbers = {c.activation[0],
                                          c.layout[0],
                                          c.order[0],
                                          s.numel,
                                          s.nan,
                                          s.pos_inf,
                                          s.neg_inf,
                                          s.zero,
                                          s.neg,
                                          s.pos,
                                          s.has_finite ? 1u : 0u,
                                          s.hash};
    for (const double x : {s.min, s.max, s.mean, s.std, s.l1, s.l2})
      numbers.push_back(std::bit_cast<std::uint64_t>(x));
    for (const double x : c.sketch) numbers.push_back(std::bit_cast<std::uint64_t>(x));
    std::uint64_t hashes[2] = {0xcbf29ce484222325u, 0x84222325cbf29ce4u};
    for (std::uint64_t& hash : hashes) {
      for (const std::uint64_t number : numbers)
        hash = (hash ^ number ^ (hash >> 29)) * 0x100000001b3u;
    }
    BlockDigest digest;
    std::memcpy(digest.data(), hashes, sizeof hashes);
    return digest;
  }

  const std::function<void()> on_block_;
  std::vector<StatBlock> blocks_;
  BlockHead head_;
  View view_;
  std::size_t next_ = 0;
  Status status_;
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SUPPORT_FAKE_SCAN_H_
