// Small documents that are kept with a run: a noise profile, requests of captures, what alarms have
// judged. All that a query may write.
//
// Who: queries, alarms. Thread-safe.
#ifndef STATCOLLECT_SERVER_STORE_DOCUMENT_STORE_H_
#define STATCOLLECT_SERVER_STORE_DOCUMENT_STORE_H_

#include <cstddef>
#include <optional>
#include <string>

#include "common/status.h"
#include "server/store/record_reader.h"

namespace statcollect {

inline constexpr std::size_t kDocumentBytesMax = std::size_t{256} << 20;

class DocumentStore : public RecordReader {
 public:
  // Removed with the run's last attempt. Durable when it returns. Without a value: removes the
  // document. kNotFound: no such run; kInvalidArgument: larger than kDocumentBytesMax.
  virtual Status PutDocument(const std::string& run, const std::string& name,
                             const std::optional<std::string>& content) = 0;
};

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_STORE_DOCUMENT_STORE_H_
