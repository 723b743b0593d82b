// A batch as it is queued and sent: its records, encoded once as a Records message, and its
// sequence numbers.
#ifndef STATCOLLECT_AGENT_EXPORT_ENCODED_BATCH_H_
#define STATCOLLECT_AGENT_EXPORT_ENCODED_BATCH_H_

#include <cstdint>
#include <string>

#include "common/records.h"

namespace statcollect {

// How many definitions a session has sent.
struct DefinitionCounts {
  std::uint32_t activations = 0, layouts = 0;
  bool operator==(const DefinitionCounts&) const = default;
};

// A range of bytes in a file; `end` is 0 if it is not in the file.
struct FileSpan {
  std::uint64_t begin = 0, end = 0;
};

struct EncodedBatch {
  std::uint64_t first_seq = 0;  // given by the send window
  std::uint32_t records = 0;    // > 0
  DefinitionCounts before;      // given by earlier batches; this batch relies on them
  DefinitionCounts after;       // including its own
  std::string bytes;
  FileSpan file = {};  // in the spill file; written under the exporter's mutex
  // Numbers directly before first_seq that the collector of the current stream never gets.
  std::uint64_t skipped = 0;
  StoreIdentity repairs = {};  // the store whose lack of records it tells of; not for any other

  std::uint64_t last_seq() const { return first_seq + records - 1; }
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_ENCODED_BATCH_H_
