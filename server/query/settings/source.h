// Where a run comes from: from an agent, from another tool's dump, or from a golden's file.
#ifndef STATCOLLECT_SERVER_QUERY_SETTINGS_SOURCE_H_
#define STATCOLLECT_SERVER_QUERY_SETTINGS_SOURCE_H_

#include <string>
#include <string_view>

#include "server/query/run_view.h"

namespace statcollect::query {

// Whose dump the run was imported from; empty if an agent recorded it.
std::string ToolOf(const RunView& view);

// "agent": its training can be launched again; "import": a dump of another tool, as is a golden of
// such a run; "golden": loaded from a file.
std::string_view SourceOf(const RunView& view);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_SETTINGS_SOURCE_H_
