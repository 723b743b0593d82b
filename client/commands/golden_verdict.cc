// What a comparison with a golden says to a continuous integration.
#include <string_view>

#include <fmt/format.h>

#include "client/commands/golden.h"
#include "client/exports/output.h"
#include "common/names.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kNamedMax = 4;

// Whether it is a version or a part of the surroundings. Neither is the code itself (git.commit),
// which is what is being tested, nor what differs between any two launches.
bool IsEnvironment(const v1::ConfigItem& item) {
  if (item.category() != v1::CONFIG_CATEGORY_VERSIONS &&
      item.category() != v1::CONFIG_CATEGORY_ENVIRONMENT)
    return false;
  return item.key() != "command_line" && item.key() != "host" && !item.key().starts_with("git.");
}

// What of it differs: "torch.version: 2.1 -> 2.2, ...".
std::string EnvironmentText(const v1::ConfigReport& report) {
  std::string text;
  std::size_t named = 0, more = 0;
  for (const v1::ConfigItem& item : report.items()) {
    if (item.same() || !IsEnvironment(item)) continue;
    if (++named > kNamedMax) {
      ++more;
      continue;
    }
    text += fmt::format("{}{}: {} -> {}", text.empty() ? "" : ", ", Printable(item.key(), 80),
                        item.has_a() ? Printable(item.a(), 80) : "not set",
                        item.has_b() ? Printable(item.b(), 80) : "not set");
  }
  return more > 0 ? fmt::format("{} and {} more", text, more) : text;
}

std::string Escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    switch (c) {
      case '&':
        safe += "&amp;";
        break;
      case '<':
        safe += "&lt;";
        break;
      case '>':
        safe += "&gt;";
        break;
      case '"':
        safe += "&quot;";
        break;
      default:  // XML 1.0 has no other control characters
        safe += static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t' ? '?' : c;
    }
  }
  return safe;
}

}  // namespace

GoldenVerdict JudgeGolden(Session& session, const v1::DiffReport& report, const std::string& file) {
  const std::string run = Printable(report.run_b()), golden = Printable(file, 1000);
  switch (report.verdict()) {
    case v1::VERDICT_IDENTICAL:
      return {"SAME", fmt::format("{} equals {} {}.", run, golden,
                                  report.without_hash() == 0 ? "bit for bit"
                                                             : "in every recorded statistic")};
    case v1::VERDICT_WITHIN_TOLERANCE: {
      v1::CompareConfigRequest request;
      request.set_run_a(report.run_a());
      request.set_run_b(report.run_b());
      const auto config = session.collector().CompareConfig(request);
      const std::string differs = config.ok() ? EnvironmentText(*config) : std::string();
      if (differs.empty())
        return {"SAME", fmt::format("{} equals {} within tolerance.", run, golden)};
      return {"DRIFTED", fmt::format("with the environment: {} equals {} within tolerance, and {}.",
                                     run, golden, differs)};
    }
    case v1::VERDICT_DIVERGED: {
      const bool named = report.has_root();
      const std::string& layer = named ? report.root().activation() : report.first().activation();
      const std::uint64_t step = named ? report.root().step() : report.first().step();
      const std::uint32_t rank = named ? report.root().rank() : report.first().rank();
      return {"CHANGED", fmt::format("at layer {}, step {}, rank {}: {} is no longer {}.",
                                     Printable(layer), step, rank, run, golden)};
    }
    default:
      return {"NO ANSWER", fmt::format("{} and {} cannot be compared.", run, golden)};
  }
}

Status WriteJunit(const std::string& path, const JunitCase& of) {
  auto partial = Partial::File(path, true);
  if (!partial.ok()) return partial.status();
  const std::string element = of.error ? "error" : of.failed ? "failure" : "";
  std::string text = fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites>\n<testsuite name=\"statcollect\" "
      "tests=\"1\" "
      "failures=\"{}\" errors=\"{}\">\n<testcase classname=\"statcollect.golden\" name=\"{}\">\n",
      of.failed && !of.error ? 1 : 0, of.error ? 1 : 0, Escaped(of.name));
  if (!element.empty())
    text += fmt::format("<{0} message=\"{1}\">{2}</{0}>\n", element, Escaped(of.verdict),
                        Escaped(of.details));
  text += fmt::format("<system-out>{}</system-out>\n</testcase>\n</testsuite>\n</testsuites>\n",
                      Escaped(of.verdict));
  STATCOLLECT_RETURN_IF_ERROR(WriteNewFile(partial->path(), text));
  return partial->Commit();
}

}  // namespace statcollect::client
