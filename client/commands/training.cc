#include "client/commands/training.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "client/commands/page_link.h"
#include "client/exports/python_process.h"
#include "common/names.h"

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
      "import importlib.util as u; s = u.find_spec('statagent'); print(list(s.submodule_search_locations)[0] if s else '')";
  auto python = PythonProcess::Start(FindPython(), kProgram, {});
  if (!python.ok()) return {};
  { const FileWriter input = python->TakeInput(); }
  const PythonProcess::End end = python->Wait();
  return end.code == 0 ? fs::path(end.errors) : fs::path();
}

// The folder that goes first on PYTHONPATH: beside this program in a wheel or a source tree, else where Python has the package;
// empty if it is nowhere.
std::string StartFolder() {
  std::error_code error;
  const fs::path bin = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& package : {bin / "../../statagent", bin / "../../../agent/python/statagent"}) {
    if (fs::is_directory(package / kStartFolder, error)) return (package / kStartFolder).lexically_normal().string();
  }
  const fs::path package = AskPython();
  return !package.empty() && fs::is_directory(package / kStartFolder, error) ? (package / kStartFolder).string()
                                                                             : std::string();
}

// Where the page shows the run; empty if it cannot be reached.
std::string PageOf(Session& session, const std::string& run) {
  const auto status = session.collector().GetStatus();
  if (!status.ok()) return {};
  const std::string origin =
      PageOrigin(status->http_address(), session.collector().address(), session.collector().uses_tls());
  return origin.empty() ? origin : origin + "/?view=run&a=" + run;
}

Variables VariablesFor(Session& session, const Training& training) {
  Variables variables = training.environment;
  const auto set = [&](const char* name, const std::string& value) {
    if (!value.empty()) variables.emplace_back(name, value);
  };
  set("STATAGENT_RUN", training.run);
  set("STATAGENT_COLLECTOR", session.collector().address());
  set("STATAGENT_PERTURB", training.perturb);
  set("STATAGENT_STEPS", training.steps);
  set("STATAGENT_IF_EXISTS", training.if_exists);
  if (training.stop_after) set("STATAGENT_STOP_AFTER", std::to_string(*training.stop_after));
  if (session.options().quiet) set("STATAGENT_QUIET", "1");
  SetUnlessSet("STATAGENT_TOKEN_FILE", session.collector().token_file(), variables);
  SetUnlessSet("STATAGENT_PROJECT", session.collector().project(), variables);
  if (!training.instrument) return variables;
  set("STATAGENT_PAGE", PageOf(session, training.run));
  if (const std::string folder = StartFolder(); !folder.empty()) {
    const std::string path = Variable("PYTHONPATH");
    set("PYTHONPATH", folder + (path.empty() ? "" : ":" + path));
    set("STATAGENT_AUTO", "1");
  } else {
    session.Remark("statctl: found no Python package statagent, so only scripts that call it record; install the wheel");
  }
  return variables;
}

bool IsPython(const std::string& word) { return fs::path(word).filename().string().starts_with("python"); }

}  // namespace

Result<ChildEnd> Train(Session& session, const Training& training, ChildOutput output) {
  STATCOLLECT_RETURN_IF_ERROR(session.collector().Locate());
  return RunChild(training.command, VariablesFor(session, training), output);
}

std::string WhyNotInstrumented(const std::vector<std::string>& command) {
  const auto python = std::find_if(command.begin(), command.end(), IsPython);
  if (python == command.end()) return {};
  constexpr std::array<std::pair<char, std::string_view>, 3> kFlags = {
      {{'I', "ignores PYTHONPATH"}, {'E', "ignores PYTHONPATH"}, {'S', "does not import sitecustomize"}}};
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

Result<std::optional<v1::RunSummary>> FindRun(Session& session, const std::string& run) {
  v1::GetRunRequest question;
  question.set_run(run);
  auto found = session.collector().GetRun(question);
  if (found.ok()) return std::optional(found->summary());
  if (found.status().code() == Code::kNotFound) return std::optional<v1::RunSummary>();
  return found.status();
}

std::string CommandText(const std::vector<std::string>& command) {
  const auto is_plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || std::string_view("@%+=:,./-_").find(c) != std::string_view::npos; };
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
