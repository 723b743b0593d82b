#include "server/api/convert.h"

namespace statcollect::api {
namespace {

void Fill(const RetentionStatus& from, v1::Retention& to) {
  to.set_age_seconds_max(from.age_seconds_max);
  to.set_disk_bytes_max(from.disk_bytes_max);
  to.set_note(from.note);
  to.set_runs_removed(from.runs_removed);
  to.set_bytes_removed(from.bytes_removed);
  for (const RetentionStatus::Next& next : from.next) {
    v1::RetentionNext& added = *to.add_next();
    added.set_run(next.run);
    added.set_last_write_unix_nanos(next.last_write_unix_nanos);
    added.set_bytes(next.bytes);
    added.set_due_unix_nanos(next.due_unix_nanos);
  }
  for (const std::string& run : from.kept) to.add_kept(run);
}

void Fill(const AccessStatus& from, v1::Access& to) {
  to.set_on(from.on);
  to.set_unauthenticated(from.unauthenticated);
  to.set_permission_denied(from.permission_denied);
  to.set_streams_refused(from.streams_refused);
  to.set_throttled_millis(from.throttled_millis);
  to.set_audit_lost(from.audit_lost);
  to.set_quota_refused(from.quota_refused);
}

void Fill(const AlarmStatus& from, v1::Alarms& to) {
  to.set_enabled(from.enabled);
  to.mutable_raised()->insert(from.raised.begin(), from.raised.end());
  to.mutable_active()->insert(from.active.begin(), from.active.end());
  to.set_evaluated_records(from.evaluated_records);
  to.set_skipped_records(from.skipped_records);
  to.set_state_bytes(from.state_bytes);
  to.set_webhook(from.webhook);
  to.set_webhook_sent(from.webhook_sent);
  to.set_webhook_failed(from.webhook_failed);
  to.set_webhook_dropped(from.webhook_dropped);
}

}  // namespace

void ToWire(const CollectorStatus& status, const std::string& project, v1::GetStatusResponse& out) {
  out.set_version(status.version);
  out.set_pid(status.pid);
  out.set_start_unix_nanos(status.start_unix_nanos);
  out.set_uptime_seconds(status.uptime_seconds);
  out.set_data_dir(status.data_dir);
  out.set_durability(status.fsync ? "fsync" : "process");
  out.set_state(status.state);
  out.set_runs(status.runs);
  out.set_streams_open(status.streams_open);
  out.set_streams_total(status.streams_total);
  out.set_batches_total(status.batches_total);
  out.set_records_total(status.records_total);
  out.set_bytes_total(status.bytes_total);
  out.set_duplicate_records_total(status.duplicate_records_total);
  out.set_rejected_batches_total(status.rejected_batches_total);
  out.set_commits_total(status.commits_total);
  out.set_disk_bytes(status.disk_bytes);
  out.set_disk_free_bytes(status.disk_free_bytes.value_or(0));
  out.set_disk_free_unknown(!status.disk_free_bytes);
  out.set_agents_dropped_total(status.agents_dropped_total);
  out.mutable_dropped_by_cause()->insert(status.dropped_by_cause.begin(),
                                         status.dropped_by_cause.end());
  out.set_backlog_records(status.backlog_records);
  out.set_backlog_bytes(status.backlog_bytes);
  out.set_backlog_oldest_millis(status.backlog_oldest_millis);
  Fill(status.retention, *out.mutable_retention());
  Fill(status.alarms, *out.mutable_alarms());
  Fill(status.access, *out.mutable_access());
  out.set_projects_full(status.projects_full);
  if (!status.project_disk.empty()) {
    v1::ProjectDisk& disk = *out.mutable_project_disk();
    disk.set_project(project);
    if (const auto found = status.project_disk.find(project); found != status.project_disk.end()) {
      disk.set_bytes(found->second.bytes);
      disk.set_bytes_max(found->second.bytes_max);
    }
  }
  out.set_http_address(status.http_address);
  out.set_grpc_address(status.grpc_address);
}

void ToWire(const access::AuditFound& found, v1::ListAuditResponse& out) {
  for (const access::AuditRecord& record : found.records) {
    v1::AuditRecord& added = *out.add_records();
    added.set_time(record.time);
    added.set_principal(record.entry.principal);
    added.set_address(record.entry.address);
    added.set_method(record.entry.method);
    added.set_object(record.entry.object);
    added.set_outcome(record.entry.outcome);
    added.set_left_out(record.entry.left_out);
  }
  out.set_more(found.more);
}

}  // namespace statcollect::api
