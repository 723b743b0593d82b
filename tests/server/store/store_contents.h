// What tests write into a store, and read back to compare.
#ifndef STATCOLLECT_TESTS_SERVER_STORE_STORE_CONTENTS_H_
#define STATCOLLECT_TESTS_SERVER_STORE_STORE_CONTENTS_H_

#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/store/store.h"
#include "tests/server/store/step_batch.h"
#include "tests/support/append_batch.h"

namespace statcollect {

inline void Append(Store& store, AttemptId attempt, std::uint32_t rank, const RecordBatch& batch) {
  const RankMeta meta = MetaOf(rank, batch.last_seq());
  const Status appended = AppendBatch(store, attempt, rank, batch, meta);
  ASSERT_TRUE(appended.ok()) << appended.message();
}

// (step, activation) of everything in scan order.
inline std::vector<std::pair<std::uint64_t, std::uint32_t>> Scan(Store& store, AttemptId attempt,
                                                                 std::uint32_t rank,
                                                                 StepBounds steps = {}) {
  std::vector<std::pair<std::uint64_t, std::uint32_t>> found;
  const auto scan = store.ScanStats(attempt, rank, steps);
  while (scan->Next()) {
    const StatBlock& block = scan->block();
    for (std::size_t i = 0; i < block.columns.size(); ++i) {
      EXPECT_EQ(block.columns.stats[i].hash, block.step * 1000 + block.columns.activation[i]);
      found.emplace_back(block.step, block.columns.activation[i]);
    }
  }
  EXPECT_TRUE(scan->status().ok()) << scan->status().message();
  return found;
}

// A stream's batches as ingest stores them: prepared one after another.
class Stream {
 public:
  Stream(Store& store, AttemptId attempt, std::uint32_t rank)
      : store_(store), attempt_(attempt), rank_(rank), writer_(store.NewWriter(attempt, rank)) {}

  void Append(const RecordBatch& batch) {
    const auto prepared = writer_->Prepare(batch);
    const RankMeta meta = MetaOf(rank_, batch.last_seq());
    const AppendItem item{
        .attempt = attempt_, .rank = rank_, .meta = &meta, .prepared = prepared.get()};
    const Status appended = store_.Append({&item, 1});
    ASSERT_TRUE(appended.ok()) << appended.message();
  }

 private:
  Store& store_;
  const AttemptId attempt_;
  const std::uint32_t rank_;
  std::unique_ptr<StreamWriter> writer_;
};

// 600 activations over `steps` steps; every third is the same in all of them.
inline void WriteRun(Store& store, AttemptId attempt, std::uint32_t rank, std::uint64_t steps,
                     double scale = 1) {
  Stream stream(store, attempt, rank);
  std::uint64_t seq = 1;
  for (std::uint64_t step = 0; step < steps; ++step) {
    RecordBatch batch = MakeBatch(seq, step, 0, 600);
    for (std::uint32_t i = 0; i < 600; ++i) {
      TensorStats& s = batch.stats.stats[i];
      s.mean = scale * (i % 3 == 0 ? 1.0 : std::sin(static_cast<double>(step * 600 + i)));
      s.std = std::abs(s.mean) / 2;
      s.l2 = std::sqrt(2 * (s.mean * s.mean + s.std * s.std));
      if (i % 3 == 0) s.hash = i;
    }
    stream.Append(batch);
    seq = batch.last_seq() + 1;
  }
}

// Everything of a rank, for comparison.
struct Content {
  std::vector<std::uint64_t> step;
  std::vector<std::uint32_t> activation;
  std::vector<TensorStats> stats;
  std::vector<double> sketch;
  bool operator==(const Content&) const = default;
};

inline Content ReadAll(Store& store, AttemptId attempt, std::uint32_t rank, StepBounds steps = {}) {
  Content content;
  const auto scan = store.ScanStats(attempt, rank, steps);
  while (scan->Next()) {
    const StatColumns& columns = scan->block().columns;
    content.step.insert(content.step.end(), columns.step.begin(), columns.step.end());
    content.activation.insert(content.activation.end(), columns.activation.begin(),
                              columns.activation.end());
    content.stats.insert(content.stats.end(), columns.stats.begin(), columns.stats.end());
    content.sketch.insert(content.sketch.end(), columns.sketch.begin(), columns.sketch.end());
  }
  EXPECT_TRUE(scan->status().ok()) << scan->status().message();
  return content;
}

// A checkpoint of a build that did not know memory and densities: it is verified without being
// changed. Chunks of `bytes` bytes of one f32 tensor, in the batch's step.
inline void AddChunks(RecordBatch* batch, std::uint64_t step, std::uint32_t activation,
                      std::size_t bytes, std::size_t chunk_bytes,
                      std::size_t chunks = ~std::size_t{0}) {
  std::string values(bytes, '\0');
  for (std::size_t i = 0; i < bytes; ++i) values[i] = static_cast<char>(i * 7 + activation);
  for (std::size_t at = 0; at < bytes && chunks-- > 0; at += chunk_bytes) {
    batch->captures.push_back({.step = step,
                               .activation = activation,
                               .layout = 0,
                               .elements = bytes / 4,
                               .offset = static_cast<std::uint32_t>(at),
                               .data = values.substr(at, chunk_bytes)});
  }
}

}  // namespace statcollect

#endif  // STATCOLLECT_TESTS_SERVER_STORE_STORE_CONTENTS_H_
