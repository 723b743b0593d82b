// The link to the collector's page that shows what a command has answered.
#ifndef STATCOLLECT_CLIENT_COMMANDS_PAGE_LINK_H_
#define STATCOLLECT_CLIENT_COMMANDS_PAGE_LINK_H_

#include <string>

#include "statcollect/v1/query.pb.h"

namespace statcollect::client {

// "http://127.0.0.1:7434" for a collector that listens for HTTP at `http` (its status says where)
// and was reached at `collector`: a wildcard such as 0.0.0.0 becomes the host that answered; a Unix
// socket is on this machine. `tls`: https. Empty if there is no HTTP address, or if only the
// collector's own machine can reach it and this is another one.
std::string PageOrigin(const std::string& http, const std::string& collector, bool tls = false);

// "/?view=compare&a=base&b=ort&tolerance=0.001": the same question. Empty if it is too long for a
// link, which only a long --map makes it.
std::string ComparePath(const v1::DiffRequest& request);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_PAGE_LINK_H_
