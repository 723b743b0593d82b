// The documents of a run, as they go from one store to another: launches in them by number instead
// of by the store's id.
#ifndef STATCOLLECT_SERVER_TRANSFER_DOCUMENTS_H_
#define STATCOLLECT_SERVER_TRANSFER_DOCUMENTS_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "common/status.h"

namespace statcollect::transfer {

// All that runs may have: capture requests, up to where alarms have judged them, noise.
inline constexpr std::array<std::string_view, 3> kDocuments = {"captures", "alarms", "noise"};

bool IsDocument(std::string_view name);

// Replaces each launch in the document by what the map says; entries of launches that it lacks are
// left out. kInvalidArgument: the content is not such a document.
Result<std::string> Renumbered(std::string_view name, const std::string& content,
                               const std::map<std::uint32_t, std::uint32_t>& launches);

}  // namespace statcollect::transfer

#endif  // STATCOLLECT_SERVER_TRANSFER_DOCUMENTS_H_
