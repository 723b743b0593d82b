// What several streams have appended to a store, what it acknowledged, and a check that the store
// holds exactly that: every acknowledged append, nothing twice, of each stream a prefix without
// gaps that its watermark agrees with. Values are derived from (rank, step, activation).
#ifndef STATCOLLECT_TESTS_SERVER_STORE_STREAM_LEDGER_H_
#define STATCOLLECT_TESTS_SERVER_STORE_STREAM_LEDGER_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/store/store.h"
#include "tests/server/store/step_batch.h"

namespace statcollect::testing {

class StreamLedger {
 public:
  explicit StreamLedger(std::uint64_t seed) : random_(seed) {}

  // Streams of an attempt that the store has.
  void Add(AttemptId attempt, std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) streams_[{attempt, rank}] = {};
  }
  void Remove(AttemptId attempt) {
    std::erase_if(streams_, [&](const auto& stream) { return stream.first.first == attempt; });
  }

  // Appends the next step of some streams, one to three of each, in one group. OK counts as
  // acknowledged if `counts` then says so.
  Status AppendGroup(
      Store& store, const std::function<bool()>& counts = [] { return true; }) {
    std::vector<RecordBatch> batches;
    std::vector<RankMeta> metas;
    std::vector<std::pair<AttemptId, std::uint32_t>> places;
    group_.clear();
    for (auto& [place, stream] : streams_) {
      if (random_() % 2 == 0) continue;
      for (std::uint64_t n = 1 + random_() % 3; n > 0; --n) {
        batches.push_back(BatchOf(place.second, stream.steps, stream.seq + 1));
        stream.seq = batches.back().last_seq();
        ++stream.steps;
        metas.push_back(MetaOf(place.second, stream.seq));
        places.push_back(place);
      }
      group_.push_back(place);
    }
    std::vector<std::unique_ptr<PreparedBatch>> prepared;
    std::vector<AppendItem> items;
    for (std::size_t i = 0; i < batches.size(); ++i) {
      const auto& [attempt, rank] = places[i];
      prepared.push_back(store.NewWriter(attempt, rank)->Prepare(batches[i]));
      items.push_back(
          {.attempt = attempt, .rank = rank, .meta = &metas[i], .prepared = prepared.back().get()});
    }
    const Status appended = items.empty() ? Status::Ok() : store.Append(items);
    if (appended.ok() && counts()) {
      for (const auto& place : group_) streams_[place].acknowledged = streams_[place].seq;
    }
    return appended;
  }

  // Compares, and goes on from what is there as agents do that resume. `whole`: nothing but the
  // last group may be missing, and it is there in whole or not at all.
  void CheckAndResume(Store& store) {
    std::map<bool, int> last_group;  // there or not -> streams
    for (auto& [place, stream] : streams_) {
      SCOPED_TRACE("attempt " + std::to_string(place.first) + ", rank " +
                   std::to_string(place.second));
      const std::uint64_t attempted = stream.seq;
      CheckStream(store, place, &stream);
      const bool in_group = std::find(group_.begin(), group_.end(), place) != group_.end();
      if (in_group) ++last_group[stream.seq == attempted];
      EXPECT_TRUE(in_group || stream.seq == attempted);
      stream.acknowledged = stream.seq;  // found durable
    }
    EXPECT_LE(last_group.size(), 1u) << "a group is there in whole or not at all";
    group_.clear();
  }

  // As CheckAndResume where nothing is synced: any end of a stream may be missing, but nothing
  // before it.
  void CheckBeginningsAndResume(Store& store) {
    for (auto& [place, stream] : streams_) {
      SCOPED_TRACE("attempt " + std::to_string(place.first) + ", rank " +
                   std::to_string(place.second));
      CheckStream(store, place, &stream);
    }
    group_.clear();
  }

  // OK: what is there is what was appended, to the last record. A failure to read is returned; a
  // wrong answer fails the test.
  Status ReadExactly(Store& store) const {
    for (const auto& [place, stream] : streams_) {
      SCOPED_TRACE("attempt " + std::to_string(place.first) + ", rank " +
                   std::to_string(place.second));
      const auto ranks = store.Ranks(place.first);
      if (!ranks.ok()) return ranks.status();
      const auto meta = ranks->find(place.second);
      const std::uint64_t watermark = meta == ranks->end() ? 0 : meta->second.durable_seq;
      EXPECT_EQ(watermark, stream.acknowledged);
      std::uint64_t records = 0;
      const auto scan = store.ScanStats(place.first, place.second, {});
      for (; scan->Next(); records += scan->block().columns.size()) {
        const StatColumns& columns = scan->block().columns;
        for (std::size_t i = 0; i < columns.size(); ++i) {
          EXPECT_EQ(columns.stats[i].hash,
                    HashOf(place.second, scan->block().step, columns.activation[i]));
        }
      }
      if (!scan->status().ok()) return scan->status();
      const auto scalars = store.Scalars(place.first, place.second, {});
      if (!scalars.ok()) return scalars.status();
      const auto events = store.Events(place.first, place.second);
      if (!events.ok()) return events.status();
      const auto ends = store.StepEnds(place.first, place.second, {});
      if (!ends.ok()) return ends.status();
      EXPECT_EQ(records + scalars->size() + events->size() + ends->size(), watermark);
    }
    return Status::Ok();
  }

  // Without going on: all that was acknowledged can be read.
  void CheckReadable(Store& store) const {
    for (auto [place, stream] : streams_) CheckStream(store, place, &stream);
  }

  std::uint64_t acknowledged() const {
    std::uint64_t sum = 0;
    for (const auto& [place, stream] : streams_) sum += stream.acknowledged;
    return sum;
  }

 private:
  struct Stream {
    std::uint64_t steps = 0, seq = 0;  // appended, acknowledged or not
    std::uint64_t acknowledged = 0;
  };

  static std::uint64_t HashOf(std::uint32_t rank, std::uint64_t step, std::uint32_t activation) {
    return (step * 1000 + activation) * 0x9e3779b97f4a7c15u + rank;
  }
  static std::uint32_t ActivationsOf(std::uint32_t rank, std::uint64_t step) {
    return 1 + static_cast<std::uint32_t>(HashOf(rank, step, 77) >> 40) % 12;
  }
  static RecordBatch BatchOf(std::uint32_t rank, std::uint64_t step, std::uint64_t first_seq) {
    RecordBatch batch = MakeBatch(first_seq, step, 0, ActivationsOf(rank, step));
    for (std::size_t i = 0; i < batch.stats.size(); ++i)
      batch.stats.stats[i].hash = HashOf(rank, step, batch.stats.activation[i]);
    batch.scalars[0].value = static_cast<double>(step) + rank * 0.5;
    return batch;
  }

  static void CheckStream(Store& store, std::pair<AttemptId, std::uint32_t> place, Stream* stream) {
    const auto ranks = store.Ranks(place.first);
    ASSERT_TRUE(ranks.ok()) << ranks.status().message();
    const auto meta = ranks->find(place.second);
    const std::uint64_t watermark = meta == ranks->end() ? 0 : meta->second.durable_seq;
    EXPECT_GE(watermark, stream->acknowledged) << "acknowledged and lost";
    EXPECT_LE(watermark, stream->seq);

    std::uint64_t seq = 0, steps = 0;
    std::vector<std::pair<std::uint64_t, std::uint32_t>> expected, found;  // step, activation
    for (; seq < watermark; ++steps) {
      const std::uint32_t activations = ActivationsOf(place.second, steps);
      for (std::uint32_t i = 0; i < activations; ++i) expected.emplace_back(steps, i);
      seq += activations + 3;  // a scalar, an event, the step's end
    }
    EXPECT_EQ(seq, watermark) << "a watermark ends a batch";
    const auto scan = store.ScanStats(place.first, place.second, {});
    while (scan->Next()) {
      const StatColumns& columns = scan->block().columns;
      for (std::size_t i = 0; i < columns.size(); ++i) {
        found.emplace_back(scan->block().step, columns.activation[i]);
        EXPECT_EQ(columns.stats[i].hash,
                  HashOf(place.second, scan->block().step, columns.activation[i]));
      }
    }
    EXPECT_TRUE(scan->status().ok()) << scan->status().message();
    EXPECT_EQ(found, expected) << "exactly the watermark's records, once";
    const auto scalars = store.Scalars(place.first, place.second, {});
    ASSERT_TRUE(scalars.ok()) << scalars.status().message();
    ASSERT_EQ(scalars->size(), steps);
    for (std::uint64_t step = 0; step < steps; ++step)
      EXPECT_EQ((*scalars)[step].value, static_cast<double>(step) + place.second * 0.5);
    EXPECT_EQ(store.Events(place.first, place.second)->size(), steps);
    EXPECT_EQ(store.StepEnds(place.first, place.second, {})->size(), steps);
    stream->seq = watermark;
    stream->steps = steps;
  }

  std::mt19937_64 random_;
  std::map<std::pair<AttemptId, std::uint32_t>, Stream> streams_;
  std::vector<std::pair<AttemptId, std::uint32_t>> group_;  // that the last append was of
};

}  // namespace statcollect::testing

#endif  // STATCOLLECT_TESTS_SERVER_STORE_STREAM_LEDGER_H_
