// statctl bisect: which commit changed the numbers of a training, and where.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "client/commands/child_process.h"
#include "client/commands/commands.h"
#include "client/commands/training.h"
#include "common/names.h"
#include "common/text.h"
#include "proto/json.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kShort = 10;  // digits of a commit in the name of its run

// What git prints, trimmed; an error with that if it fails.
Result<std::string> Git(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "git");
  const auto end = RunChild(arguments, {}, ChildOutput::kKept);
  if (!end.ok()) return end.status();
  if (end->code != 0)
    return Status(Code::kFailedPrecondition, fmt::format("{}: {}", CommandText(arguments),
                                                         Printable(Trimmed(end->tail), 2000)));
  return std::string(Trimmed(end->tail));
}

// A bisection of git in the user's working tree, which is as before once the object is gone.
class Checkouts {
 public:
  // kInvalidArgument: another one is under way, or files have changes that are not committed.
  static Result<std::unique_ptr<Checkouts>> Begin() {
    const auto changed = Git({"status", "--porcelain", "--untracked-files=no"});
    if (!changed.ok()) return changed.status();
    if (!changed->empty())
      return Status(Code::kInvalidArgument,
                    "other commits are to be checked out here: found changes that are not "
                    "committed; expected none; "
                    "commit them, or git stash");
    if (Git({"bisect", "log"}).ok())
      return Status(Code::kInvalidArgument,
                    "found a bisection under way in this working tree; expected none; git bisect "
                    "reset ends it");
    const auto started = Git({"bisect", "start"});
    if (!started.ok()) return started.status();
    return std::unique_ptr<Checkouts>(new Checkouts());
  }
  ~Checkouts() { (void)Git({"bisect", "reset"}); }
  Checkouts(const Checkouts&) = delete;
  Checkouts& operator=(const Checkouts&) = delete;

  static Status Take(const std::string& commit) {
    return Git({"checkout", "--quiet", "--detach", commit}).status();
  }
  // `word`: good, bad or skip. Checks out the next commit to test; the text says how many are left.
  static Result<std::string> Mark(const std::string& word, const std::string& commit) {
    return Git({"bisect", word, commit});
  }
  static Result<std::string> Current() { return Git({"rev-parse", "HEAD"}); }
  // Nothing while it goes on. kAborted: only commits are left that cannot be tested.
  static Result<std::optional<std::string>> FirstBad() {
    const auto log = Git({"bisect", "log"});
    if (!log.ok()) return log.status();
    constexpr std::string_view kFound = "# first bad commit: [";
    if (const auto at = log->find(kFound); at != std::string::npos) {
      const std::size_t from = at + kFound.size();
      return std::optional(log->substr(from, log->find(']', from) - from));
    }
    if (log->find("# only skipped commits left to test") != std::string::npos)
      return Status(Code::kAborted,
                    "only commits are left whose training failed, so the first one that differs is "
                    "among these; expected "
                    "trainings that end with exit code 0; --show shows what they print");
    return std::optional<std::string>();
  }

 private:
  Checkouts() = default;
};

struct Tested {
  std::string commit, result;  // "good", "bad", or "skip"
};

class Bisection {
 public:
  Bisection(Session& session, const BisectOptions& options)
      : session_(session), options_(options) {}

  // The first commit that differs.
  Result<std::string> Run() {
    STATCOLLECT_RETURN_IF_ERROR(Resolve("--good", options_.good, good_));
    STATCOLLECT_RETURN_IF_ERROR(Resolve("--bad", options_.bad, bad_));
    STATCOLLECT_RETURN_IF_ERROR(
        session_.collector().Locate());  // in this folder, before others are checked out
    const auto checkouts = Checkouts::Begin();
    if (!checkouts.ok()) return checkouts.status();
    STATCOLLECT_RETURN_IF_ERROR(TestEnds());
    while (true) {
      const auto found = Checkouts::FirstBad();
      if (!found.ok()) return found.status();
      if (*found) return **found;
      const auto commit = Checkouts::Current();
      if (!commit.ok()) return commit.status();
      const auto result = Test(*commit);
      if (!result.ok()) return result.status();
      const auto marked = Checkouts::Mark(*result, *commit);
      if (!marked.ok()) return marked.status();
    }
  }

  int Answer(const std::string& first) {
    const auto subject = Git({"show", "--no-patch", "--format=%h %s (%an, %as)", first});
    const std::string text = subject.ok() ? Printable(*subject, 500) : first;
    if (session_.options().format == Format::kJson) {
      nlohmann::ordered_json tested = nlohmann::ordered_json::array();
      for (const Tested& each : tested_)
        tested.push_back(
            {{"commit", each.commit}, {"result", each.result}, {"run", RunOf(each.commit)}});
      session_.PrintLine(DumpJson({{"first_bad", first},
                                   {"text", text},
                                   {"run_a", RunOf(good_)},
                                   {"run_b", RunOf(first)},
                                   {"tested", tested}}));
      return kExitSame;
    }
    session_.PrintLine(fmt::format("The numbers change with {}\n", text));
    const int code = Diff(session_, {.run_a = RunOf(good_), .run_b = RunOf(first)});
    return code == kExitDiverged ? kExitSame : code;
  }

 private:
  static Status Resolve(const char* option, const std::string& revision, std::string& commit) {
    auto found =
        Git({"rev-parse", "--verify", "--quiet", "--end-of-options", revision + "^{commit}"});
    if (!found.ok())
      return {Code::kInvalidArgument, fmt::format("{}: no commit '{}' in a repository of git here; "
                                                  "expected one, such as v1.2 or HEAD~20",
                                                  option, Printable(revision))};
    commit = *std::move(found);
    return Status::Ok();
  }

  static std::string RunOf(const std::string& commit) {
    return "bisect-" + commit.substr(0, kShort);
  }

  Training TrainingOf(const std::string& commit) const {
    Training training{.run = RunOf(commit), .command = options_.command, .if_exists = "replace"};
    if (options_.steps) {
      training.steps = fmt::format("0-{}", *options_.steps - 1);
      training.stop_after = options_.steps;
    }
    return training;
  }

  // The two ends, of which the second has to differ.
  Status TestEnds() {
    STATCOLLECT_RETURN_IF_ERROR(Checkouts::Take(good_));
    session_.Remark(fmt::format("good: {} is trained", good_.substr(0, kShort)));
    const Training base = TrainingOf(good_);
    if (const auto recorded = Record(session_, base, options_.show); !recorded.ok())
      return recorded.status();
    STATCOLLECT_RETURN_IF_ERROR(RemoveTwins(session_, base.run));
    if (!options_.no_twins)
      STATCOLLECT_RETURN_IF_ERROR(
          MakeTwins(session_, {.training = base, .quick = options_.quick, .show = options_.show}));
    STATCOLLECT_RETURN_IF_ERROR(Checkouts::Take(bad_));
    const auto result = Test(bad_);
    if (!result.ok()) return result.status();
    if (*result != "bad")
      return {
          Code::kFailedPrecondition,
          *result == "skip"
              ? "the training of --bad failed; expected exit code 0; --show shows what it prints"
              : "the trainings of --good and --bad agree up to rounding; expected two that differ"};
    STATCOLLECT_RETURN_IF_ERROR(Checkouts::Mark("good", good_).status());
    return Checkouts::Mark("bad", bad_).status();
  }

  // Trains what is checked out: "good", "bad", or "skip" if it does not train.
  Result<std::string> Test(const std::string& commit) {
    const auto recorded = Record(session_, TrainingOf(commit), options_.show);
    if (!recorded.ok() && recorded.status().code() != Code::kUnknown &&
        recorded.status().code() != Code::kNotFound)
      return recorded.status();
    std::string result = "skip";
    if (recorded.ok()) {
      const auto report =
          AskDiff(session_, {.run_a = RunOf(good_), .run_b = RunOf(commit), .top = 1});
      if (!report.ok()) return report.status();
      result = ExitCodeOf(report->verdict()) == kExitSame ? "good" : "bad";
    }
    session_.Remark(fmt::format("{}: {}", commit.substr(0, kShort),
                                result == "good"  ? "agrees with --good"
                                : result == "bad" ? "differs"
                                                  : "does not train, and is left out"));
    tested_.push_back({.commit = commit, .result = result});
    return result;
  }

  Session& session_;
  const BisectOptions& options_;
  std::string good_, bad_;
  std::vector<Tested> tested_;
};

}  // namespace

int Bisect(Session& session, const BisectOptions& options) {
  const std::string attempted =
      fmt::format("bisect {}..{}", Printable(options.good), Printable(options.bad));
  const Collector::Task task(session.collector());
  if (options.steps == 0)
    return session.Fail(attempted,
                        {Code::kInvalidArgument, "--steps: expected at least one step, found 0"});
  Bisection bisection(session, options);
  const auto first = bisection.Run();
  return first.ok() ? bisection.Answer(*first) : session.Fail(attempted, first.status());
}

}  // namespace statcollect::client
