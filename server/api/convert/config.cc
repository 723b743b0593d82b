#include "common/names.h"
#include "server/api/convert.h"

namespace statcollect::api {
namespace {

static_assert(static_cast<int>(query::ConfigCategory::kOther) == v1::ConfigCategory_MAX);

}  // namespace

Result<query::ConfigRequest> FromWire(const v1::CompareConfigRequest& request) {
  STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run_a()));
  if (!request.run_b().empty()) STATCOLLECT_RETURN_IF_ERROR(ValidateRunName(request.run_b()));
  return query::ConfigRequest{
      .run_a = request.run_a(), .run_b = request.run_b(), .all = request.all()};
}

void ToWire(const query::ConfigReport& report, v1::ConfigReport& out) {
  out.set_run_a(report.run_a);
  out.set_run_b(report.run_b);
  out.set_same(report.same);
  for (const query::ConfigItem& item : report.items) {
    v1::ConfigItem& added = *out.add_items();
    added.set_category(static_cast<v1::ConfigCategory>(item.category));
    added.set_key(item.key);
    if (item.a) added.set_a(*item.a);
    if (item.b) added.set_b(*item.b);
    added.set_same(item.same);
  }
  out.set_compared(report.compared);
  out.set_differ(report.differ);
  out.mutable_notes()->Add(report.notes.begin(), report.notes.end());
}

}  // namespace statcollect::api
