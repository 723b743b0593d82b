#include "client/commands/training.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <iostream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <google/protobuf/util/message_differencer.h>
#include <nlohmann/json.hpp>

#include "client/commands/page_link.h"
#include "client/commands/recorded_command.h"
#include "client/exports/python_process.h"
#include "common/names.h"
#include "common/twin_name.h"

namespace statcollect::client {
namespace {

namespace fs = std::filesystem;

// Below the Python package: a folder that holds nothing but sitecustomize.py.
constexpr char kStartFolder[] = "_auto/start";

const char* Variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

void SetUnlessSet(const char* name, const std::string& value, Variables& variables) {
  if (!value.empty() && *Variable(name) == '\0') variables.emplace_back(name, value);
}

// Where the package is, as Python says.
fs::path AskPython() {
  constexpr char kProgram[] =
      "import importlib.util as u; s = u.find_spec('statagent'); "
      "print(list(s.submodule_search_locations)[0] if s else '')";
  auto python = PythonProcess::Start(FindPython(), kProgram, {});
  if (!python.ok()) return {};
  { const FileWriter input = python->TakeInput(); }
  const PythonProcess::End end = python->Wait();
  return end.code == 0 ? fs::path(end.errors) : fs::path();
}

// The folder that goes first on PYTHONPATH: beside this program in a wheel or a source tree, else
// where Python has the package; empty if it is nowhere.
std::string StartFolder() {
  std::error_code error;
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& package :
       {bin / "../../statagent", bin / "../../../agent/python/statagent"}) {
    if (fs::is_directory(package / kStartFolder, error))
      return (package / kStartFolder).lexically_normal().string();
  }
  const fs::path package = AskPython();
  return !package.empty() && fs::is_directory(package / kStartFolder, error)
             ? (package / kStartFolder).string()
             : std::string();
}

// Where the page shows the run; empty if it cannot be reached.
std::string PageOf(Session& session, const std::string& http, const std::string& run) {
  const std::string origin =
      PageOrigin(http, session.collector().address(), session.collector().uses_tls());
  return origin.empty() ? origin : origin + "/?view=run&a=" + run;
}

// `http`: where the collector serves its page; empty: nowhere.
Variables VariablesFor(Session& session, const Training& training, const std::string& http,
                       const NotesFile& notes) {
  Variables variables = training.environment;
  AddSettings(CommandSettings(training), variables);
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty()) variables.emplace_back(name, value);
  };
  set("STATAGENT_RUN", training.run);
  set("STATAGENT_COLLECTOR", session.collector().address());
  if (const auto& noise = training.noise)
    set("STATAGENT_PERTURB",
        fmt::format("{},{}{}", noise->ulps, noise->seed, noise->once ? ",once" : ""));
  set("STATAGENT_STEPS", training.steps);
  set("STATAGENT_IF_EXISTS", training.if_exists);
  if (training.stop_after) set("STATAGENT_STOP_AFTER", std::to_string(*training.stop_after));
  if (session.options().quiet) set("STATAGENT_QUIET", "1");
  SetUnlessSet("STATAGENT_TOKEN_FILE", AbsolutePath(session.collector().token_file()), variables);
  SetUnlessSet("STATAGENT_PROJECT", session.collector().project(), variables);
  if (!training.instrument) return variables;
  set("STATAGENT_PAGE", PageOf(session, http, training.run));
  if (const std::string folder = StartFolder(); !folder.empty()) {
    const std::string path = Variable("PYTHONPATH");
    set("PYTHONPATH", folder + (path.empty() ? "" : ":" + path));
    set("STATAGENT_AUTO", "1");
    set("STATAGENT_AUTO_NOTES", notes.path());
  } else {
    session.Remark(
        "statctl: found no Python package statagent, so only scripts that call it record; install "
        "the wheel");
  }
  return variables;
}

constexpr std::size_t kTailLines = 20;
constexpr int kSignalCodes = 128;  // of a shell, for a command that a signal has ended

std::string LastLines(const std::string& text) {
  std::size_t at = text.size(), lines = 0;
  while (at > 0 && (text[at - 1] != '\n' || at == text.size() || ++lines < kTailLines)) --at;
  return text.substr(at);
}

bool IsPython(const std::string& word) {
  return fs::path(word).filename().string().starts_with("python");
}

// The address of the collector's page, which may be empty. A training whose records nobody takes is
// not begun.
Result<std::string> CheckCollector(Session& session) {
  STATCOLLECT_RETURN_IF_ERROR(session.collector().Locate());
  const auto status = session.collector().GetStatus();
  if (status.ok() && status->state() != "ready")
    return Status(
        Code::kFailedPrecondition,
        fmt::format(
            "the collector takes no records now: it is {}; expected ready; nothing was started",
            Printable(status->state())));
  if (status.ok()) return status->http_address();
  if (status.status().code() == Code::kUnavailable) return status.status();
  return std::string();  // a token may allow less
}

// Runs the command while a line says how far it is.
Result<ChildEnd> RunWatched(Session& session, const Training& training,
                            const Variables& variables) {
  constexpr std::chrono::milliseconds kLook{500};
  const auto begun = std::chrono::steady_clock::now();
  auto running = std::async(std::launch::async, [&] {
    return RunChild(training.command, variables, ChildOutput::kKept, training.folder);
  });
  const bool shown = session.terminal().err && !session.options().quiet;
  while (running.wait_for(kLook) != std::future_status::ready) {
    if (!shown) continue;
    const auto run = FindRun(session, RunNameOf(training));
    const std::string steps = run.ok() && *run && (*run)->has_last_step()
                                  ? fmt::format("step {}, ", (*run)->last_step())
                                  : "";
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begun;
    std::cerr << fmt::format("\r  {}{:.0f} s\x1b[K", steps, time.count()) << std::flush;
  }
  if (shown) std::cerr << "\r\x1b[K" << std::flush;
  return running.get();
}

// Why python does not run sitecustomize, as "python -I ignores PYTHONPATH"; empty if nothing is
// known.
std::string WhyNotInstrumented(const std::vector<std::string>& command) {
  const auto python = std::find_if(command.begin(), command.end(), IsPython);
  if (python == command.end()) return {};
  constexpr std::array<std::pair<char, std::string_view>, 3> kFlags = {
      {{'I', "ignores PYTHONPATH"},
       {'E', "ignores PYTHONPATH"},
       {'S', "does not import sitecustomize"}}};
  for (auto word = python + 1; word != command.end() && word->starts_with('-'); ++word) {
    if (*word == "-c" || *word == "-m" || word->starts_with("--")) break;
    if (*word == "-X" || *word == "-W") {
      if (++word == command.end()) break;
      continue;
    }
    for (const auto& [flag, why] : kFlags) {
      if (word->find(flag) != std::string::npos) return fmt::format("python -{} {}", flag, why);
    }
  }
  return {};
}

// The steps of the instrumentation, and the first that was not reached.
std::string Missing(const TrainingNotes& notes) {
  if (notes.by_hand)
    return "the script calls statagent itself, and has recorded nothing under this name";
  if (!notes.python) return "the command has started no Python that reads PYTHONPATH";
  if (!notes.torch) return "its Python has not imported torch";
  return notes.optimizer ? "no training pass of a model was seen"
                         : "no optimizer of torch.optim was made";
}

}  // namespace

Result<Trained> Train(Session& session, const Training& training, ChildOutput output) {
  const auto http = CheckCollector(session);
  if (!http.ok()) return http.status();
  auto before = FindRun(session, RunNameOf(training));
  if (!before.ok()) return before.status();
  const NotesFile notes;
  const Variables variables = VariablesFor(session, training, *http, notes);
  auto end = output == ChildOutput::kKept
                 ? RunWatched(session, training, variables)
                 : RunChild(training.command, variables, output, training.folder);
  if (!end.ok()) return end.status();
  return Trained{.end = *std::move(end), .notes = notes.Read(), .before = *std::move(before)};
}

Result<std::optional<v1::RunSummary>> RecordedBy(Session& session, const Training& training,
                                                 const Trained& trained) {
  STATCOLLECT_ASSIGN_OR_RETURN(auto now, FindRun(session, RunNameOf(training)));
  // Another record would have changed its counts or times.
  if (now && trained.before &&
      google::protobuf::util::MessageDifferencer::Equals(*now, *trained.before))
    now.reset();
  return now;
}

std::string RunNameOf(const Training& training) {
  return training.noise ? TwinName(training.run, training.noise->ulps, training.noise->seed)
                        : training.run;
}

Result<Recorded> Record(Session& session, const Training& training, bool show) {
  const auto begun = std::chrono::steady_clock::now();
  const std::string run = RunNameOf(training);
  const auto trained = Train(session, training, show ? ChildOutput::kToErrors : ChildOutput::kKept);
  if (!trained.ok()) return trained.status();
  Recorded recorded;
  recorded.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  if (!session.collector().WaitUnlessCancelled(std::chrono::milliseconds(0)))
    return Status(Code::kCancelled, "interrupted");
  if (trained->end.code != 0) {
    std::cerr << LastLines(trained->end.tail);
    return Status(
        Code::kUnknown,
        fmt::format("the command ended with exit code {} while it trained '{}'; expected 0; its "
                    "last output is above",
                    trained->end.code, run));
  }
  auto found = RecordedBy(session, training, *trained);
  if (!found.ok()) return found.status();
  if (!*found)
    return Status(Code::kNotFound,
                  fmt::format("the command ended well, but it has recorded nothing of run '{}': {}",
                              run, WhyNothing(training.command, *trained)));
  if (const std::string lost = WhyNotAll(trained->notes, (*found)->ranks()); !lost.empty())
    return Status(Code::kFailedPrecondition, lost);
  recorded.summary = *std::move(*found);
  return recorded;
}

bool AddSettings(const std::map<std::string, std::string>& settings, Variables& environment) {
  constexpr char kVariable[] = "STATAGENT_CONFIG";
  std::string given = Variable(kVariable);
  const auto of_training = std::find_if(environment.rbegin(), environment.rend(),
                                        [&](const auto& each) { return each.first == kVariable; });
  if (of_training != environment.rend()) given = of_training->second;
  nlohmann::json all = nlohmann::json::object();
  if (!given.empty()) all = nlohmann::json::parse(given, nullptr, false);
  if (!all.is_object()) return false;  // a file, too
  for (const auto& [name, value] : settings) all[name] = value;
  std::erase_if(environment, [&](const auto& each) { return each.first == kVariable; });
  environment.emplace_back(kVariable, all.dump());
  return true;
}

std::string WhyNothing(const std::vector<std::string>& command, const Trained& trained) {
  if (trained.end.code > kSignalCodes)
    return fmt::format("the command was ended by signal {} before a training was recorded",
                       trained.end.code - kSignalCodes);
  if (trained.end.code != 0)
    return fmt::format("the command ended with exit code {} before a training was recorded",
                       trained.end.code);
  const std::string flags = WhyNotInstrumented(command);
  for (const auto* const said : {&trained.notes.failed, &trained.notes.nothing})
    if (flags.empty() && !said->empty())
      return Printable(said->front(), 500);  // with its own advice
  return (flags.empty() ? Missing(trained.notes) : flags) +
         "; add statagent.init() and statagent.watch(model, optimizer=optimizer) to the script "
         "(docs/run.md)";
}

std::string WhyNotAll(const TrainingNotes& notes, std::uint32_t ranks) {
  constexpr std::string_view kNext =
      "; expected one training in a command, or ranks that say so with RANK and WORLD_SIZE, or "
      "torch.distributed";
  const auto taken = static_cast<std::size_t>(
      std::count_if(notes.failed.begin(), notes.failed.end(),
                    [](const std::string& why) { return why.starts_with("RunExistsError"); }));
  const std::size_t all = notes.recording + taken;
  if (all <= std::max<std::size_t>(ranks, 1) || notes.by_hand) return {};
  return fmt::format(
      "{} processes have trained as the same rank of one run; only one of them is recorded, and "
      "another start may "
      "record another{}",
      all - ranks + 1, kNext);
}

Result<std::optional<v1::RunSummary>> FindRun(Session& session, const std::string& run) {
  v1::GetRunRequest question;
  question.set_run(run);
  auto found = session.collector().GetRun(question);
  if (found.ok()) return std::optional(found->summary());
  if (found.status().code() == Code::kNotFound) return std::optional<v1::RunSummary>();
  return found.status();
}

std::string CommandText(const std::vector<std::string>& command) {
  const auto is_plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("@%+=:,./-_").find(c) != std::string_view::npos;
  };
  std::string text;
  for (const std::string& word : command) {
    if (!text.empty()) text += ' ';
    if (!word.empty() && std::all_of(word.begin(), word.end(), is_plain)) {
      text += word;
      continue;
    }
    text += '\'';
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    text += '\'';
  }
  return Printable(text, 1000);
}

}  // namespace statcollect::client
