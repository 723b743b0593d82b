// What all ranks of two runs have shown by the time a record is computed: reduced gradients, and
// whatever else ranks exchange, depend on the records of every rank.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_OTHER_RANKS_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_OTHER_RANKS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <stop_token>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/thread_annotations.h"
#include "server/query/parallel.h"
#include "server/query/verdict/step_pairs.h"

namespace statcollect::query {

// Thread-safe. A step is read when somebody asks for it, with those before it: most judgements end
// at the first step that differs. `Data`: what a rank shows in a step, about 100 bytes for each of
// its records that counts.
template <typename Data>
class OtherRanks {
 public:
  using Steps = std::map<std::uint64_t, bool>;  // the keys count: those that may be read
  // `follow`: takes the rank's steps, ascending; of different ranks from several threads at once.
  struct Rank {
    std::size_t place = 0;
    StepPairsReader reader;
    std::function<Result<Data>(std::uint64_t step, StepPairs& now)> follow;
  };

  OtherRanks(std::vector<Rank> ranks, Steps steps, std::stop_token stop)
      : steps_(std::move(steps)), stop_(std::move(stop)), next_(steps_.begin()) {
    for (Rank& rank : ranks) ranks_.push_back({.rank = std::move(rank)});
  }

  // Of the ranks except this one, in a step; empty if there are none, or if it is none of the steps
  // that may be read. Cost: the first call for a step reads it of all ranks of both runs; other
  // callers wait.
  Result<std::vector<const Data*>> Of(std::size_t place, std::uint64_t step) {
    const MutexLock lock(mutex_);
    STATCOLLECT_RETURN_IF_ERROR(ReadUpTo(step));
    std::vector<const Data*> others;
    for (const Followed& other : ranks_) {
      const auto found = other.steps.find(step);
      if (other.rank.place != place && found != other.steps.end()) others.push_back(&found->second);
    }
    return others;
  }

 private:
  struct Followed {
    Rank rank;
    std::map<std::uint64_t, Data> steps;
    Status status;
  };

  Status ReadUpTo(std::uint64_t step) STATCOLLECT_REQUIRES(mutex_) {
    for (; next_ != steps_.end() && next_->first <= step; ++next_) {
      const std::span<Followed> ranks(ranks_);  // the threads that read have no lock of their own
      InParallel(ranks.size(), [&, at = next_->first](std::size_t i) { Read(at, ranks[i]); });
      for (const Followed& rank : ranks) STATCOLLECT_RETURN_IF_ERROR(rank.status);
    }
    return Status::Ok();
  }

  void Read(std::uint64_t step, Followed& of) const {
    if (of.status.ok() && stop_.stop_requested())
      of.status = Status(Code::kCancelled, "diff: cancelled");
    StepPairs now;
    if (of.status.ok()) of.status = of.rank.reader.Read(step, now);
    if (!of.status.ok()) return;
    auto data = of.rank.follow(step, now);
    of.status = data.status();
    if (data.ok()) of.steps.emplace(step, *std::move(data));
  }

  const Steps steps_;
  const std::stop_token stop_;
  Mutex mutex_;
  typename Steps::const_iterator next_ STATCOLLECT_GUARDED_BY(mutex_);  // the first not read
  std::vector<Followed> ranks_ STATCOLLECT_GUARDED_BY(mutex_);
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_OTHER_RANKS_H_
