#include "proto/convert.h"

#include <cassert>
#include <limits>
#include <string>

#include "common/checksum.h"
#include "proto/convert/captures.h"
#include "proto/convert/checks.h"
#include "proto/convert/definitions.h"
#include "proto/convert/exponents.h"
#include "proto/convert/layout_table.h"
#include "proto/convert/side_records.h"
#include "proto/convert/statistics.h"
#include "proto/convert/tokens.h"

namespace statcollect {
namespace {

Status CheckHeader(const v1::Batch& wire) {
  if (wire.first_seq() == 0)
    return convert::Invalid("batch: first_seq is 0; sequence numbers start at 1");
  if (wire.n() == 0 || wire.n() > kBatchRecordsMax) {
    return convert::Invalid("batch: n is " + std::to_string(wire.n()) + "; expected 1.." +
                            std::to_string(kBatchRecordsMax));
  }
  if (wire.first_seq() > std::numeric_limits<std::uint64_t>::max() - wire.n()) {
    return convert::Invalid("batch: first_seq " + std::to_string(wire.first_seq()) + " with " +
                            std::to_string(wire.n()) + " records passes the last sequence number");
  }
  if (wire.skipped() >= wire.first_seq()) {
    return convert::Invalid("batch: skipped is " + std::to_string(wire.skipped()) +
                            "; expected less than first_seq, " + std::to_string(wire.first_seq()));
  }
  if (const std::uint32_t crc = Crc32c(wire.records()); crc != wire.crc()) {
    return Status(Code::kDataLoss, "batch: CRC-32C of records is " + std::to_string(crc) +
                                       "; the sender computed " + std::to_string(wire.crc()) +
                                       "; the batch was damaged on its way: send it again");
  }
  return Status::Ok();
}

}  // namespace

void ToWire(const RecordBatch& batch, KnownLayouts known, v1::Records* records) {
  convert::DefinitionsToWire(batch, records);
  if (!batch.stats.empty()) {
    convert::StatsToWire(batch.stats, convert::LayoutTable(known, batch.layouts),
                         records->mutable_stats());
  }
  convert::SideRecordsToWire(batch, records);
  convert::CapturesToWire(batch, records);
  convert::ExponentsToWire(batch, records);
  convert::TokensToWire(batch, records);
}

v1::Batch ToWire(const RecordBatch& batch, KnownLayouts known) {
  assert(batch.records() > 0);
  v1::Records records;
  ToWire(batch, known, &records);
  v1::Batch wire;
  wire.set_first_seq(batch.first_seq);
  wire.set_skipped(batch.skipped);
  wire.set_n(static_cast<std::uint32_t>(batch.records()));
  records.SerializeToString(wire.mutable_records());
  wire.set_crc(Crc32c(wire.records()));
  return wire;
}

Result<RecordBatch> FromWire(const v1::Records& records, KnownLayouts known) {
  RecordBatch batch;
  STATCOLLECT_RETURN_IF_ERROR(convert::DefinitionsFromWire(records, known, &batch));
  STATCOLLECT_RETURN_IF_ERROR(convert::StatsFromWire(
      records.stats(), convert::LayoutTable(known, batch.layouts), &batch.stats));
  STATCOLLECT_RETURN_IF_ERROR(convert::SideRecordsFromWire(records, &batch));
  STATCOLLECT_RETURN_IF_ERROR(
      convert::CapturesFromWire(records, convert::LayoutTable(known, batch.layouts), &batch));
  STATCOLLECT_RETURN_IF_ERROR(
      convert::ExponentsFromWire(records, convert::LayoutTable(known, batch.layouts), &batch));
  STATCOLLECT_RETURN_IF_ERROR(convert::TokensFromWire(records, &batch));
  return batch;
}

Result<RecordBatch> FromWire(const v1::Batch& wire, KnownLayouts known) {
  STATCOLLECT_RETURN_IF_ERROR(CheckHeader(wire));
  v1::Records records;
  if (!records.ParseFromString(wire.records())) {
    return convert::Invalid("batch: records is not a serialized statcollect.v1.Records");
  }
  const std::uint64_t found = static_cast<std::uint64_t>(records.stats().activation_size()) +
                              static_cast<std::uint64_t>(records.scalars_size()) +
                              static_cast<std::uint64_t>(records.events_size()) +
                              static_cast<std::uint64_t>(records.memory_size()) +
                              static_cast<std::uint64_t>(records.densities_size()) +
                              static_cast<std::uint64_t>(records.settings_size()) +
                              static_cast<std::uint64_t>(records.steps_size()) +
                              static_cast<std::uint64_t>(records.captures_size()) +
                              static_cast<std::uint64_t>(records.exponents_size()) +
                              static_cast<std::uint64_t>(records.tokens_size());
  if (found != wire.n()) {
    return convert::Invalid("batch: records holds " + std::to_string(found) +
                            " records; expected n = " + std::to_string(wire.n()));
  }
  auto batch = FromWire(records, known);
  if (!batch.ok()) return batch;
  batch->first_seq = wire.first_seq();
  batch->skipped = wire.skipped();
  return batch;
}

}  // namespace statcollect
