// What an importer makes of a dump, before it is a stream: one observation a tensor, and the tally of what
// could not be taken as it is.
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

// Ids of `def` and `layout` are not used; the order of execution is the order in which observations come.
struct Observation {
  std::uint64_t step = 0;
  TensorDef def;
  Layout layout;
  TensorStats stats;
  std::vector<double> samples;  // first elements, at most kSamplesMax
};

// Takes one rank's observations. After a failure everything fails with the same status.
class ObservationSink {
 public:
  virtual ~ObservationSink() = default;
  // Steps do not decrease. An identity that the step has already is skipped and counted.
  Status Take(Observation observation) {
    return Keep(failure_.ok() ? DoTake(std::move(observation)) : failure_);
  }
  // The step has been read to its end.
  Status EndStep(std::uint64_t step) { return Keep(failure_.ok() ? DoEndStep(step) : failure_); }
  bool failed() const { return !failure_.ok(); }

 private:
  virtual Status DoTake(Observation observation) = 0;
  virtual Status DoEndStep(std::uint64_t step) = 0;
  Status Keep(Status status) {
    failure_ = status;
    return status;
  }

  Status failure_;
};

// What an import did, for its summary.
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
