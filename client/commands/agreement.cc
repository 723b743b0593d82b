#include "client/commands/agreement.h"

#include <algorithm>

#include <fmt/format.h>

#include "client/render/table.h"
#include "common/names.h"
#include "proto/json.h"
#include "proto/text/divergence_text.h"

namespace statcollect::client {
namespace {

using std::chrono::steady_clock;

// The last step that every rank has left behind.
std::optional<std::uint64_t> CompleteStep(const v1::GetRunResponse& run) {
  std::optional<std::uint64_t> step;
  if (run.attempts().empty()) return step;
  for (const v1::RankInfo& rank : run.attempts().rbegin()->ranks()) {
    if (!rank.has_last_step()) return std::nullopt;
    const bool over = rank.state() != "running";
    if (!over && rank.last_step() == 0) return std::nullopt;
    const std::uint64_t complete = over ? rank.last_step() : rank.last_step() - 1;
    step = std::min(step.value_or(complete), complete);
  }
  return step;
}

// "step 3, rank 0, forward, fc: numeric 0.02"
std::string ShortPlace(const v1::Divergence& row) {
  std::string text =
      fmt::format("{}: {}", WhereText(row), EnumText(*v1::Reason_descriptor(), row.reason()));
  if (row.has_distance()) text += " " + FormatShort(row.distance());
  return text;
}

}  // namespace

bool Agreement::AskBoth(const v1::GetRunResponse& run) {
  v1::GetRunRequest request;
  request.set_run(against_);
  const auto other = collector_.GetRun(request);
  if (!other.ok()) {
    trouble_ = Printable(other.status().message(), 300);
    return false;
  }
  other_state_ = other->summary().state();
  attempts_ = run.summary().attempts() + other->summary().attempts();
  own_ = CompleteStep(run);
  wanted_ = CompleteStep(*other);
  if (own_ && wanted_) wanted_ = std::min(*wanted_, *own_);
  return own_ && wanted_;
}

void Agreement::Update(const v1::GetRunResponse& run) {
  trouble_.clear();
  if (!AskBoth(run)) return;
  const bool over = run.summary().state() == "finished";
  const bool known = step_ && asked_attempts_ == attempts_ && verdict_ != v1::VERDICT_INCOMPARABLE;
  if (known && wanted_ == step_ && (all_asked_ || !over)) return;
  Compare(over, known);
}

// Every step counts, not the newest alone.
void Agreement::Compare(bool over, bool known) {
  if (known && !over && cost_ > patience_ && *step_ < *wanted_) {
    const auto news = verdict_ == v1::VERDICT_DIVERGED ? Result<v1::DiffReport>(v1::DiffReport())
                                                       : AskSteps(*step_ + 1, *wanted_);
    if (!news.ok()) {
      trouble_ = Printable(news.status().message(), 300);
      return;
    }
    if (news->verdict() <= verdict_) {
      step_ = wanted_;
      all_asked_ = false;
      return;
    }
  }
  const auto begin = steady_clock::now();
  const auto report = AskSteps(0, *wanted_);
  cost_ = steady_clock::now() - begin;
  if (!report.ok()) {
    trouble_ = Printable(report.status().message(), 300);
    return;
  }
  step_ = wanted_;
  all_asked_ = true;
  asked_attempts_ = attempts_;
  Note(*report);
}

Result<v1::DiffReport> Agreement::AskSteps(std::uint64_t first, std::uint64_t last) {
  v1::DiffRequest request;
  request.set_run_a(against_);
  request.set_run_b(run_);
  request.set_steps(fmt::format("{}-{}", first, last));
  request.set_top(1);
  return collector_.Diff(request, {});
}

void Agreement::Note(const v1::DiffReport& report) {
  verdict_ = report.verdict();
  explained_ = report.explained();
  first_.reset();
  root_.reset();
  if (report.verdict() == v1::VERDICT_INCOMPARABLE) trouble_ = Printable(report.message(), 300);
  if (report.verdict() == v1::VERDICT_DIVERGED) first_ = report.first();
  if (report.has_root()) root_ = report.root();
  where_ = root_ || first_ ? ShortPlace(Focus(report)) : std::string();
}

// The run's steps that the other run has not completed yet.
std::string Agreement::NotComparedText() const {
  if (!own_ || !step_ || *own_ <= *step_) return {};
  const std::string steps = *own_ == *step_ + 1 ? fmt::format("step {}", *own_)
                                                : fmt::format("steps {}..{}", *step_ + 1, *own_);
  return other_state_ == "running"
             ? fmt::format("; {} not compared yet: {} is behind", steps, against_)
             : fmt::format("; {} not compared: {} ended before", steps, against_);
}

std::string Agreement::Text() const {
  if (!trouble_.empty()) return "not compared with " + against_ + ": " + trouble_;
  if (!step_) return "no complete step to compare with " + against_ + " yet";
  std::string text = fmt::format("steps 0..{} against {}: {}", *step_, against_,
                                 EnumText(*v1::Verdict_descriptor(), verdict_));
  if (!explained_.empty()) text += fmt::format(", {} explains every difference", explained_);
  if (root_) {
    text += fmt::format("; root so far ({}): {}", root_->confidence(), where_);
    if (root_->has_cause()) text += "; " + Printable(root_->cause().text(), 300);
  } else if (first_) {
    text += "; first divergence so far: " + where_;
  }
  return text + NotComparedText();
}

nlohmann::ordered_json Agreement::Json() const {
  nlohmann::ordered_json json = {
      {"run", against_},
      {"verdict", step_ ? EnumText(*v1::Verdict_descriptor(), verdict_) : std::string()},
      {"trouble", trouble_}};
  if (step_) json["step"] = *step_;
  if (step_ && own_ && *own_ > *step_)
    json["not_compared"] = fmt::format("{}-{}", *step_ + 1, *own_);
  if (first_) json["first_diverged"] = first_->step();
  json["where"] = where_;
  if (!explained_.empty()) json["explained"] = explained_;
  if (root_) json["root"] = ToJson(*root_);
  return json;
}

}  // namespace statcollect::client
