// The file that `statctl report` makes, without its data: built from web/, embedded in statctl.
#ifndef STATCOLLECT_CLIENT_RENDER_REPORT_TEMPLATE_H_
#define STATCOLLECT_CLIENT_RENDER_REPORT_TEMPLATE_H_

#include <string_view>

namespace statcollect::client {

// Has kReportData once, where the data belongs: JSON without '<'.
std::string_view ReportTemplate();
inline constexpr std::string_view kReportData = "@DATA@";

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_REPORT_TEMPLATE_H_
