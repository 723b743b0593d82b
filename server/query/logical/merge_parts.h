// Statistics of a logical tensor in one step from the records of the ranks that hold it.
#ifndef STATCOLLECT_SERVER_QUERY_LOGICAL_MERGE_PARTS_H_
#define STATCOLLECT_SERVER_QUERY_LOGICAL_MERGE_PARTS_H_

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "common/records.h"

namespace statcollect::query {

// What one rank recorded. Points into what was read.
struct Part {
  std::uint32_t rank = 0;
  std::uint32_t micro_batch = 0, call = 0;
  const Layout* layout = nullptr;
  const TensorStats* stats = nullptr;
  std::span<const double> sketch;
  std::uint32_t order = 0, stage = 0;
};

struct MergedTensor {
  Layout layout;  // dtype, global shape, and what is absent; without an id
  TensorStats stats;
  std::vector<double> sketch;  // empty: it says nothing, because hash and sketch need every element's place
  std::vector<std::uint32_t> differing;  // ranks whose replica is not the first one's
  bool complete = true;                  // the parts tile the tensor
  std::string problem;                   // why there is no result; empty: there is one
};

// How the boxes of several ranks lie in one tensor, known once for the layouts.
struct Tiling {
  std::vector<std::size_t> first;       // distinct places: the first part with each
  std::vector<std::size_t> replica_of;  // of each part: the first part with its place
  bool complete = true;
  std::string problem;  // they overlap, or do not agree about the shape; empty: neither
};

class PartMerger {
 public:
  // Merges the parts of one tensor. Parts without a placement are replicas of the whole; the caller has checked
  // that. Counts, extremes and hash are exact, moments and sketch to rounding. If
  // the tensor has several pieces (data-parallel ranks, micro-batches), whose order is not known, hash, sketch
  // and everything that grows with the number of samples are absent: extremes, mean and deviation remain.
  // Precondition: at least one part.
  MergedTensor Merge(std::span<const Part> parts);

 private:
  const Tiling& TilingOf(std::span<const Part> parts);

  std::map<std::vector<const Layout*>, Tiling> known_;
};

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_LOGICAL_MERGE_PARTS_H_
