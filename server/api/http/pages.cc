#include "server/api/http/pages.h"

#include <cstdint>
#include <optional>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/names.h"

namespace statcollect {
namespace {

struct Metric {
  std::string_view name, type, help;
  std::optional<double> value;  // none: unknown, and not shown
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

std::string Rendered(const Metric& m) {
  if (!m.value) return "";
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n{0} {3:.17g}\n", m.name, m.help, m.type,
                     *m.value);
}

std::string RenderAccess(const AccessStatus& a) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  std::string text;
  for (const Metric& m : std::initializer_list<Metric>{
           {"statcollect_access_unauthenticated_total", "counter",
            "Calls refused for want of a valid token or certificate.", number(a.unauthenticated)},
           {"statcollect_access_permission_denied_total", "counter",
            "Calls refused for want of a scope, or for another project.",
            number(a.permission_denied)},
           {"statcollect_access_streams_refused_total", "counter",
            "Streams over the limit of their caller.", number(a.streams_refused)},
           {"statcollect_access_throttled_seconds_total", "counter",
            "How long streams have waited for a limit of bytes a second.",
            number(a.throttled_millis) / 1000},
           {"statcollect_project_refused_total", "counter",
            "Streams and batches refused because their project takes more disk than it may.",
            number(a.quota_refused)},
           {"statcollect_audit_lost_total", "counter", "Lines that the audit log could not write.",
            number(a.audit_lost)},
       })
    text += Rendered(m);
  return text;
}

std::string RenderAlarms(const AlarmStatus& a) {
  std::string text;
  const auto metric = [&](std::string_view name, std::string_view type, std::string_view help) {
    text += fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
  };
  metric("statcollect_alarms_total", "counter", "Alarms raised, by rule.");
  for (const auto& [rule, count] : a.raised)
    text += fmt::format("statcollect_alarms_total{{rule=\"{}\"}} {}\n", EscapeLabel(rule), count);
  metric("statcollect_alarms_active", "gauge",
         "Alarms of unfinished runs that have not cleared, by rule.");
  for (const auto& [rule, count] : a.active)
    text += fmt::format("statcollect_alarms_active{{rule=\"{}\"}} {}\n", EscapeLabel(rule), count);
  const auto single = [&](std::string_view name, std::string_view type, std::string_view help,
                          std::uint64_t value) {
    metric(name, type, help);
    text += fmt::format("{} {}\n", name, value);
  };
  single("statcollect_alarm_records_evaluated_total", "counter",
         "Tensor records that the alarms have checked.", a.evaluated_records);
  single("statcollect_alarm_records_skipped_total", "counter",
         "Tensor records that the alarms skipped because they could not keep up.",
         a.skipped_records);
  single("statcollect_alarm_state_bytes", "gauge", "Memory of the alarms' state.", a.state_bytes);
  single("statcollect_alarm_webhook_sent_total", "counter", "Alarms delivered to the webhook.",
         a.webhook_sent);
  single("statcollect_alarm_webhook_failed_total", "counter",
         "Failed attempts to reach the webhook.", a.webhook_failed);
  single("statcollect_alarm_webhook_dropped_total", "counter",
         "Alarms dropped after the last retry.", a.webhook_dropped);
  return text;
}

std::string RenderRefusals(const ForeignCheck& foreign) {
  using Reason = ForeignCheck::Reason;
  return fmt::format(
      "# HELP statcollect_http_refused_total HTTP requests refused because of their Host, or "
      "because a page of "
      "another origin sent them.\n# TYPE statcollect_http_refused_total counter\n"
      "statcollect_http_refused_total{{reason=\"host\"}} "
      "{}\nstatcollect_http_refused_total{{reason=\"origin\"}} {}\n",
      foreign.refused(Reason::kHost), foreign.refused(Reason::kOrigin));
}

}  // namespace

std::string RenderDropped(const CollectorStatus& s) {
  std::string text =
      "# HELP statcollect_dropped_records Records that agents reported as lost, over all stored "
      "runs.\n"
      "# TYPE statcollect_dropped_records gauge\n";
  for (const auto& [cause, count] : s.dropped_by_cause)
    text +=
        fmt::format("statcollect_dropped_records{{cause=\"{}\"}} {}\n", EscapeLabel(cause), count);
  return text;
}

std::string RenderMetrics(const CollectorStatus& s) {
  const auto number = [](auto value) { return static_cast<double>(value); };
  const Metric metrics[] = {
      {"statcollect_ready", "gauge", "1 if the collector accepts records.", s.ready() ? 1.0 : 0.0},
      {"statcollect_uptime_seconds", "gauge", "Seconds since the start.", number(s.uptime_seconds)},
      {"statcollect_runs", "gauge", "Runs in the store.", number(s.runs)},
      {"statcollect_streams_open", "gauge", "Open streams of agents.", number(s.streams_open)},
      {"statcollect_streams_total", "counter", "Streams accepted after their hello.",
       number(s.streams_total)},
      {"statcollect_batches_total", "counter", "Batches accepted.", number(s.batches_total)},
      {"statcollect_records_total", "counter", "Records written durably.", number(s.records_total)},
      {"statcollect_received_bytes_total", "counter", "Bytes of accepted batches.",
       number(s.bytes_total)},
      {"statcollect_duplicate_records_total", "counter", "Records received again and discarded.",
       number(s.duplicate_records_total)},
      {"statcollect_rejected_batches_total", "counter", "Batches refused.",
       number(s.rejected_batches_total)},
      {"statcollect_commits_total", "counter", "Atomic writes to the store.",
       number(s.commits_total)},
      {"statcollect_disk_bytes", "gauge", "Bytes of the store's files.", number(s.disk_bytes)},
      {"statcollect_disk_free_bytes", "gauge",
       "Free bytes of the store's file system; absent where the store cannot tell.",
       s.disk_free_bytes ? std::optional(number(*s.disk_free_bytes)) : std::nullopt},
      {"statcollect_agents_dropped_total", "counter", "Records that agents reported as lost.",
       number(s.agents_dropped_total)},
      {"statcollect_backlog_records", "gauge", "Records received and not yet durable.",
       number(s.backlog_records)},
      {"statcollect_backlog_bytes", "gauge", "Bytes received and not yet durable.",
       number(s.backlog_bytes)},
      {"statcollect_backlog_oldest_seconds", "gauge", "How long the oldest of them has waited.",
       number(s.backlog_oldest_millis) / 1000},
      {"statcollect_projects_full", "gauge", "Projects that take more disk than they may.",
       number(s.projects_full)},
      {"statcollect_retention_age_seconds", "gauge", "Age at which a run is removed; 0: none.",
       number(s.retention.age_seconds_max)},
      {"statcollect_retention_disk_bytes", "gauge",
       "Size of the store above which the oldest runs are removed; 0: none.",
       number(s.retention.disk_bytes_max)},
      {"statcollect_retention_held", "gauge",
       "1 if retention removes less than its limits ask for.",
       s.retention.note.empty() ? 0.0 : 1.0},
      {"statcollect_retention_runs_removed_total", "counter", "Runs that retention removed.",
       number(s.retention.runs_removed)},
      {"statcollect_retention_bytes_removed_total", "counter",
       "Approximate bytes of runs that retention removed.", number(s.retention.bytes_removed)},
  };
  std::string text = fmt::format(
      "# HELP statcollect_build_info Version and durability of the collector.\n# TYPE "
      "statcollect_build_info "
      "gauge\n"
      "statcollect_build_info{{version=\"{}\",durability=\"{}\"}} 1\n",
      EscapeLabel(s.version), s.fsync ? "fsync" : "process");
  for (const Metric& m : metrics) text += Rendered(m);
  text += RenderAccess(s.access);
  text += RenderDropped(s);
  text += RenderAlarms(s.alarms);
  return text;
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
