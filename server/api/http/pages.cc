#include "server/api/http/pages.h"

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/names.h"

namespace statcollect {
namespace {

struct Metric {
  std::string_view name, type, help;
  std::optional<double> value = {};  // none: unknown, and not shown
};

std::string EscapeLabel(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\' || c == '"') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

HttpResponse HealthPage() { return {.body = "{\"status\":\"ok\"}\n"}; }

HttpResponse ReadyPage(const CollectorStatus& status) {
  return {.status = status.ready() ? 200 : 503,
          .body = nlohmann::json{{"status", Printable(status.state)}}.dump() + "\n"};
}

std::string Head(std::string_view name, std::string_view type, std::string_view help) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

std::string Rendered(std::initializer_list<Metric> metrics) {
  std::string text;
  for (const Metric& m : metrics) {
    if (m.value)
      text += Head(m.name, m.type, m.help) + fmt::format("{} {:.17g}\n", m.name, *m.value);
  }
  return text;
}

std::string Labelled(const Metric& m, std::string_view label,
                     const std::map<std::string, std::uint64_t>& counts) {
  std::string text = Head(m.name, m.type, m.help);
  for (const auto& [value, count] : counts)
    text += fmt::format("{}{{{}=\"{}\"}} {}\n", m.name, label, EscapeLabel(value), count);
  return text;
}

double Number(auto count) { return static_cast<double>(count); }

std::string RenderAccess(const AccessStatus& a) {
  return Rendered({
      {"statcollect_access_unauthenticated_total", "counter",
       "Calls refused for want of a valid token or certificate.", Number(a.unauthenticated)},
      {"statcollect_access_permission_denied_total", "counter",
       "Calls refused for want of a scope, or for another project.", Number(a.permission_denied)},
      {"statcollect_access_streams_refused_total", "counter",
       "Streams over the limit of their caller.", Number(a.streams_refused)},
      {"statcollect_access_throttled_seconds_total", "counter",
       "How long streams have waited for a limit of bytes a second.",
       Number(a.throttled_millis) / 1000},
      {"statcollect_project_refused_total", "counter",
       "Streams and batches refused because their project takes more disk than it may.",
       Number(a.quota_refused)},
      {"statcollect_audit_lost_total", "counter", "Lines that the audit log could not write.",
       Number(a.audit_lost)},
  });
}

std::string RenderAlarms(const AlarmStatus& a) {
  return Labelled({"statcollect_alarms_total", "counter", "Alarms raised, by rule."}, "rule",
                  a.raised) +
         Labelled({"statcollect_alarms_active", "gauge",
                   "Alarms of unfinished runs that have not cleared, by rule."},
                  "rule", a.active) +
         Rendered({
             {"statcollect_alarm_records_evaluated_total", "counter",
              "Tensor records that the alarms have checked.", Number(a.evaluated_records)},
             {"statcollect_alarm_records_skipped_total", "counter",
              "Tensor records that the alarms skipped because they could not keep up.",
              Number(a.skipped_records)},
             {"statcollect_alarm_state_bytes", "gauge", "Memory of the alarms' state.",
              Number(a.state_bytes)},
             {"statcollect_alarm_webhook_sent_total", "counter", "Alarms delivered to the webhook.",
              Number(a.webhook_sent)},
             {"statcollect_alarm_webhook_failed_total", "counter",
              "Failed attempts to reach the webhook.", Number(a.webhook_failed)},
             {"statcollect_alarm_webhook_dropped_total", "counter",
              "Alarms dropped after the last retry.", Number(a.webhook_dropped)},
         });
}

std::string RenderRefusals(const ForeignCheck& foreign) {
  using Reason = ForeignCheck::Reason;
  return Labelled(
      {"statcollect_http_refused_total", "counter",
       "HTTP requests refused because of their Host, or because a page of another origin sent "
       "them."},
      "reason",
      {{"host", foreign.refused(Reason::kHost)}, {"origin", foreign.refused(Reason::kOrigin)}});
}

}  // namespace

std::string RenderMetrics(const CollectorStatus& s) {
  const std::string metrics = Rendered({
      {"statcollect_ready", "gauge", "1 if the collector accepts records.", s.ready() ? 1.0 : 0.0},
      {"statcollect_uptime_seconds", "gauge", "Seconds since the start.", Number(s.uptime_seconds)},
      {"statcollect_runs", "gauge", "Runs in the store.", Number(s.runs)},
      {"statcollect_streams_open", "gauge", "Open streams of agents.", Number(s.streams_open)},
      {"statcollect_streams_total", "counter", "Streams accepted after their hello.",
       Number(s.streams_total)},
      {"statcollect_batches_total", "counter", "Batches accepted.", Number(s.batches_total)},
      {"statcollect_records_total", "counter", "Records written durably.", Number(s.records_total)},
      {"statcollect_received_bytes_total", "counter", "Bytes of accepted batches.",
       Number(s.bytes_total)},
      {"statcollect_duplicate_records_total", "counter", "Records received again and discarded.",
       Number(s.duplicate_records_total)},
      {"statcollect_rejected_batches_total", "counter", "Batches refused.",
       Number(s.rejected_batches_total)},
      {"statcollect_commits_total", "counter", "Atomic writes to the store.",
       Number(s.commits_total)},
      {"statcollect_disk_bytes", "gauge", "Bytes of the store's files.", Number(s.disk_bytes)},
      {"statcollect_disk_free_bytes", "gauge",
       "Free bytes of the store's file system; absent where the store cannot tell.",
       s.disk_free_bytes ? std::optional(Number(*s.disk_free_bytes)) : std::nullopt},
      {"statcollect_agents_dropped_total", "counter", "Records that agents reported as lost.",
       Number(s.agents_dropped_total)},
      {"statcollect_backlog_records", "gauge", "Records received and not yet durable.",
       Number(s.backlog_records)},
      {"statcollect_backlog_bytes", "gauge", "Bytes received and not yet durable.",
       Number(s.backlog_bytes)},
      {"statcollect_backlog_oldest_seconds", "gauge", "How long the oldest of them has waited.",
       Number(s.backlog_oldest_millis) / 1000},
      {"statcollect_projects_full", "gauge", "Projects that take more disk than they may.",
       Number(s.projects_full)},
      {"statcollect_retention_age_seconds", "gauge", "Age at which a run is removed; 0: none.",
       Number(s.retention.age_seconds_max)},
      {"statcollect_retention_disk_bytes", "gauge",
       "Size of the store above which the oldest runs are removed; 0: none.",
       Number(s.retention.disk_bytes_max)},
      {"statcollect_retention_held", "gauge",
       "1 if retention removes less than its limits ask for.",
       s.retention.note.empty() ? 0.0 : 1.0},
      {"statcollect_retention_runs_removed_total", "counter", "Runs that retention removed.",
       Number(s.retention.runs_removed)},
      {"statcollect_retention_bytes_removed_total", "counter",
       "Approximate bytes of runs that retention removed.", Number(s.retention.bytes_removed)},
  });
  return Head("statcollect_build_info", "gauge", "Version and durability of the collector.") +
         fmt::format("statcollect_build_info{{version=\"{}\",durability=\"{}\"}} 1\n",
                     EscapeLabel(s.version), s.fsync ? "fsync" : "process") +
         metrics + RenderAccess(s.access) +
         Labelled({"statcollect_dropped_records", "gauge",
                   "Records that agents reported as lost, over all stored runs."},
                  "cause", s.dropped_by_cause) +
         RenderAlarms(s.alarms);
}

std::map<std::string, HttpHandler> MakePages(CollectorControl& control,
                                             const ForeignCheck* foreign) {
  return {
      {"/healthz", [](const std::string&) { return HealthPage(); }},
      {"/readyz", [&control](const std::string&) { return ReadyPage(control.GetStatus()); }},
      {"/metrics",
       [&control, foreign](const std::string&) {
         return HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                             .body = RenderMetrics(control.GetStatus()) +
                                     (foreign != nullptr ? RenderRefusals(*foreign) : "")};
       }},
  };
}

}  // namespace statcollect
