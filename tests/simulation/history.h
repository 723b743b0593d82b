// What the sessions of a simulated world have sent and what the store has acknowledged, and the
// rules that both must keep. A record carries the number that it has within its session, so that
// each can be checked by itself.
#ifndef STATCOLLECT_TESTS_SIMULATION_HISTORY_H_
#define STATCOLLECT_TESTS_SIMULATION_HISTORY_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>

#include "server/store/store.h"

namespace statcollect::simulation {

struct SessionHistory {
  std::string name;             // for messages
  std::uint64_t submitted = 0;  // records
  std::uint64_t attempted = 0;  // the last number that was in a write
  std::uint64_t written = 0;    // the last number in a write that the store has acknowledged
  std::uint64_t acked = 0;      // that the agent counts as acknowledged
  bool late = false;            // its process has ended, and what it left is imported
  bool removed = false;  // its attempt was removed, so that what it sends later may begin anew
};

class History {
 public:
  SessionHistory& Of(const SessionId& id) { return sessions_[id]; }

  // The next batch of a session: some statistics, scalars and the step's end.
  static RecordBatch MakeBatch(const SessionId& id, std::uint64_t step, std::uint64_t first_seq,
                               std::uint32_t tensors, std::uint32_t scalars);

  // Before a write: whether its items are what the sessions sent, and follow what is stored.
  void CheckItem(Store& store, const AppendItem& item, const RecordBatch& batch);
  // The same for an item behind another of its rank in the same write.
  void CheckBatch(const AppendItem& item, const RecordBatch& batch);
  void Written(const AppendItem& item);
  // The attempts are about to be removed.
  void Removing(Store& store, std::span<const AttemptId> ids);
  // Everything that the store has, after a start or at the end. After it, what was found counts as
  // written.
  void CheckStore(Store& store);
  // What the collector says to an agent.
  void CheckTold(const SessionId& id, std::uint64_t durable_seq);
  void CheckAgent(const SessionId& id, const AgentCounters& counters);

  void Fail(const std::string& text) {
    if (failure_.empty()) failure_ = text;
  }
  const std::string& failure() const { return failure_; }
  std::uint64_t records_written() const { return records_written_; }

 private:
  void CheckNewest(Store& store, const AppendItem& item, const SessionHistory& session);
  void CheckRank(Store& store, AttemptId attempt, std::uint32_t rank, const RankMeta& meta);

  std::map<SessionId, SessionHistory> sessions_;
  std::string failure_;
  std::uint64_t records_written_ = 0;
};

}  // namespace statcollect::simulation

#endif  // STATCOLLECT_TESTS_SIMULATION_HISTORY_H_
