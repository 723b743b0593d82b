// The pages that statcollectord serves over HTTP: /healthz, /readyz, /metrics and a start page.
#ifndef STATCOLLECT_SERVER_API_HTTP_PAGES_H_
#define STATCOLLECT_SERVER_API_HTTP_PAGES_H_

#include <map>
#include <string>

#include "server/control/control.h"
#include "server/http/foreign.h"
#include "server/http/server.h"

namespace statcollect {

// Prometheus text exposition format 0.0.4. The names are documented in docs/metrics.md.
std::string RenderMetrics(const CollectorStatus& status);

// `control` must outlive the handlers; so must `foreign`, whose refusals are in the metrics (null:
// none are).
std::map<std::string, HttpHandler> MakePages(CollectorControl& control,
                                             const ForeignCheck* foreign = nullptr);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_API_HTTP_PAGES_H_
