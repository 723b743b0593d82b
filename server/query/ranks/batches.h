// Finds ranks that got the same data, and are not known to work on the same part of the batch.
#ifndef STATCOLLECT_SERVER_QUERY_RANKS_BATCHES_H_
#define STATCOLLECT_SERVER_QUERY_RANKS_BATCHES_H_

#include <cstdint>
#include <map>
#include <vector>

#include "server/query/ranks/finding_list.h"
#include "server/query/ranks/group_step.h"

namespace statcollect::query {

class BatchCheck {
 public:
  BatchCheck(const KeyTable& keys, FindingList& findings) : keys_(keys), findings_(findings) {}

  void Check(const GroupStep& at);
  // Whether any two ranks have got the same data so far.
  bool HasFound() const { return !same_.empty(); }
  void Conclude();

 private:
  // All inputs of a rank in a micro-batch, as one number.
  struct Fed {
    std::uint64_t sum = 0;
    bool varied = false;
  };
  struct History {
    std::uint64_t first_step = 0, steps = 0, last_step = 0;
    std::uint32_t micro_batch = 0;
    std::uint64_t last_counted = ~std::uint64_t{0};
  };

  std::map<std::uint32_t, std::vector<Fed>> WhatWasFed(const GroupStep& at) const;
  void AddSame(const Ranks& ranks, std::uint64_t step, std::uint32_t micro_batch);

  const KeyTable& keys_;
  FindingList& findings_;
  std::map<Ranks, History> same_;
  std::uint64_t steps_with_batches_ = 0;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_RANKS_BATCHES_H_
