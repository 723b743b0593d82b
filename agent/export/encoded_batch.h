// A batch as it travels and waits: its records encoded once (the message Records), its numbers beside them.
#ifndef STATCOLLECT_AGENT_EXPORT_ENCODED_BATCH_H_
#define STATCOLLECT_AGENT_EXPORT_ENCODED_BATCH_H_

#include <cstdint>
#include <string>

namespace statcollect {

// How many definitions a session has given.
struct DefinitionCounts {
  std::uint32_t activations = 0, layouts = 0;
  bool operator==(const DefinitionCounts&) const = default;
};

// Where something is in a file, in bytes; nowhere if `end` is 0.
struct FileSpan {
  std::uint64_t begin = 0, end = 0;
};

struct EncodedBatch {
  std::uint64_t first_seq = 0;  // given by the send window
  std::uint32_t records = 0;    // > 0
  DefinitionCounts before;      // that batches before it have given, and it relies on
  DefinitionCounts after;       // with its own
  std::string bytes;
  FileSpan file = {};  // in the spill file; written under the exporter's mutex

  std::uint64_t last_seq() const { return first_seq + records - 1; }
};

}  // namespace statcollect

#endif  // STATCOLLECT_AGENT_EXPORT_ENCODED_BATCH_H_
