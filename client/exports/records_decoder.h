// Turns the messages of ReadRecords into calls of an Exporter. Keeps the definitions and checks
// that ids are defined.
#ifndef STATCOLLECT_CLIENT_EXPORTS_RECORDS_DECODER_H_
#define STATCOLLECT_CLIENT_EXPORTS_RECORDS_DECODER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "client/exports/exporter.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

class RecordsDecoder {
 public:
  // `to` must outlive it.
  explicit RecordsDecoder(Exporter& to) : to_(to) {}

  // kDataLoss: the message contradicts itself or earlier ones. Errors of the exporter are returned
  // unchanged.
  Status Take(const v1::ReadRecordsResponse& message);

  std::uint64_t records() const { return records_; }
  const std::set<std::uint32_t>& ranks() const { return ranks_; }
  // First and last step of the records.
  std::optional<std::pair<std::uint64_t, std::uint64_t>> steps() const { return steps_; }

 private:
  struct Definitions {
    std::vector<TensorDef> activations;
    std::vector<Layout> layouts;
  };
  Status WriteStats(const v1::ReadRecordsResponse& message, const StatColumns& stats,
                    const Definitions& definitions);
  void NoteStep(std::uint64_t step);

  Exporter& to_;
  // By attempt, rank and whether it is of whole tensors.
  std::map<std::tuple<std::uint32_t, std::uint32_t, bool>, Definitions> definitions_;
  std::uint64_t records_ = 0;
  std::set<std::uint32_t> ranks_;
  std::optional<std::pair<std::uint64_t, std::uint64_t>> steps_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_EXPORTS_RECORDS_DECODER_H_
