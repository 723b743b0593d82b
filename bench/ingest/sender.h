// Many ranks in a few threads: each rank speaks the real protocol on a connection of its own and
// sends as fast as the window lets it.
#ifndef STATCOLLECT_BENCH_INGEST_SENDER_H_
#define STATCOLLECT_BENCH_INGEST_SENDER_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/ingest/record_maker.h"
#include "common/status.h"

namespace statcollect::bench {

struct SendOptions {
  std::string collector;  // HOST:PORT
  std::string run = "bench";
  IfExists if_exists = IfExists::kError;
  std::map<std::string, std::string> config;  // of every rank
  std::uint32_t streams = 1;
  std::uint32_t threads = 2;
  std::uint64_t steps = 100;
  std::uint32_t batch_records =
      4096;  // statistics records in a batch, at most; it ends with a step
  std::chrono::duration<double> time_max{};  // 0: until all steps are sent
  double records_per_second = 0;  // of all streams together; 0: as fast as the window lets them
};

// What became of one rank.
struct StreamResult {
  std::uint64_t records = 0, stat_records = 0;  // acknowledged
  double done_seconds = 0;  // last acknowledgement, from the first write of all streams
};

struct SendResult {
  double seconds = 0;  // first write to last acknowledgement
  std::uint64_t records = 0, stat_records = 0, batches = 0, bytes = 0;
  bool fsync = false;  // what the collector said an acknowledgement means
  std::vector<StreamResult> streams;
  std::vector<float> ack_seconds;  // from a batch handed to gRPC to its acknowledgement, sorted
};

// Statistics records acknowledged so far, one entry a stream. Written by the senders, read by
// anyone.
using Progress = std::vector<std::atomic<std::uint64_t>>;

// Connects all streams, then sends. Blocks until everything is acknowledged and every stream has
// ended well; an error names the first stream that did not. `progress`: options.streams entries.
Result<SendResult> Send(const SendOptions& options, const RecordMaker& maker, Progress* progress);

}  // namespace statcollect::bench

#endif  // STATCOLLECT_BENCH_INGEST_SENDER_H_
