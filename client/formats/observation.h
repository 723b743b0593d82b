// The importers' intermediate form: one observation per tensor, and a tally of what was skipped or
// changed.
#ifndef STATCOLLECT_CLIENT_FORMATS_OBSERVATION_H_
#define STATCOLLECT_CLIENT_FORMATS_OBSERVATION_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/records.h"
#include "common/status.h"

namespace statcollect::client::formats {

// The ids of `def` and `layout` are not used; the order of execution is the order of the
// observations.
struct Observation {
  std::uint64_t step = 0;
  TensorDef def;
  Layout layout;
  TensorStats stats;
  std::vector<double> sketch;   // 0, 16, 32 or 64 sums
  std::vector<double> samples;  // first elements, at most kSamplesMax
};

// Receives one rank's observations. After a failure, every call returns the same status.
class ObservationSink {
 public:
  virtual ~ObservationSink() = default;
  // Steps must not decrease. A repeated identity within a step is skipped and counted.
  Status Take(Observation observation) {
    return Keep(failure_.ok() ? DoTake(std::move(observation)) : failure_);
  }
  // The step is complete.
  Status EndStep(std::uint64_t step) { return Keep(failure_.ok() ? DoEndStep(step) : failure_); }
  // A number that is no tensor's. Steps as above; of a repeated name and micro-batch, both stay.
  Status TakeScalar(ScalarRecord scalar) {
    return Keep(failure_.ok() ? DoTakeScalar(std::move(scalar)) : failure_);
  }
  bool failed() const { return !failure_.ok(); }

 private:
  virtual Status DoTake(Observation observation) = 0;
  virtual Status DoTakeScalar(ScalarRecord scalar) = 0;
  virtual Status DoEndStep(std::uint64_t step) = 0;
  Status Keep(Status status) {
    failure_ = status;
    return status;
  }

  Status failure_;
};

// Totals of an import, for its summary.
struct Tally {
  std::uint64_t bytes = 0, files = 0;
  std::map<std::string, std::uint64_t> skipped;    // by cause
  std::map<std::string, std::uint64_t> untrusted;  // records by statistic
  std::set<std::string> notes;                     // sentences, each once

  void Skip(const std::string& cause, std::uint64_t count = 1) {
    if (count > 0) skipped[cause] += count;
  }
  void Note(std::string sentence) {
    if (notes.size() < kNotesMax) notes.insert(std::move(sentence));
  }

  static constexpr std::size_t kNotesMax = 100;
};

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_OBSERVATION_H_
