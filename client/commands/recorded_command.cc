#include "client/commands/recorded_command.h"

#include <filesystem>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/names.h"
#include "common/redact.h"
#include "common/utf8.h"

namespace statcollect::client {
namespace {

constexpr char kCommand[] = "recording.command", kFolder[] = "recording.folder";
constexpr char kPerturb[] = "recording.perturb";
constexpr std::string_view kVariable = "env.";
constexpr std::size_t kTextMax = 8000;         // of a command, in JSON
constexpr std::size_t kVariableTextMax = 500;  // a longer value may have been cut

Status NotAgain(const std::string& run, const std::string& why) {
  return {Code::kFailedPrecondition,
          fmt::format("train '{}' again: {}; expected a run that statctl run or ab has recorded on "
                      "this machine; leave --train out to see what to run yourself",
                      run, why)};
}

std::optional<std::string> Find(const RunConfig& config, const std::string& key) {
  const auto found = config.find(key);
  return found == config.end() ? std::nullopt : std::optional(found->second);
}

bool IsText(std::string_view text) {
  while (!text.empty()) {
    const std::size_t bytes = DecodeUtf8(text).bytes;
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

bool IsRedacted(const std::string& text) { return text.find(kRedacted) != std::string::npos; }

void Set(const std::string& name, const std::optional<std::string>& value, Training& training) {
  if (value) {
    training.environment.emplace_back(name, *value);
  } else {
    training.command.insert(training.command.begin(), {"env", "-u", name});
  }
}

}  // namespace

Result<RunConfig> ConfigOf(Session& session, const std::string& run) {
  v1::GetRunRequest question;
  question.set_run(run);
  const auto found = session.collector().GetRun(question);
  if (!found.ok()) return found.status();
  return RunConfig(found->config().begin(), found->config().end());
}

RunConfig CommandSettings(const Training& training) {
  std::vector<std::string> words;
  for (const auto& [name, value] : training.environment) {
    if (name.starts_with("STATAGENT_")) continue;
    if (words.empty()) words.emplace_back("env");
    words.push_back(name + "=" + value);
  }
  words.insert(words.end(), training.command.begin(), training.command.end());
  std::error_code error;
  const std::string folder =
      training.folder.empty() ? std::filesystem::current_path(error).string() : training.folder;
  bool text = !folder.empty() && IsText(folder);
  for (const std::string& word : words) text = text && IsText(word);
  if (!text) return {};
  const std::string command = nlohmann::json(words).dump(-1, ' ', true);
  if (command.size() > kTextMax) return {};
  return {{kCommand, command}, {kFolder, folder}};
}

Result<Training> RecordedTraining(const std::string& run, const RunConfig& config) {
  const auto command = Find(config, kCommand), folder = Find(config, kFolder);
  if (!command || !folder) return NotAgain(run, "its command is not known");
  if (config.contains(kPerturb)) return NotAgain(run, "it is a twin, with noise in its tensors");
  if (IsRedacted(*command) || IsRedacted(*folder))
    return NotAgain(run, "its command has a secret, which is not stored");
  const auto words = nlohmann::json::parse(*command, nullptr, false);
  Training training{.run = run, .folder = *folder};
  if (words.is_array()) {
    for (const auto& word : words)
      if (word.is_string()) training.command.push_back(word.get<std::string>());
  }
  if (training.command.empty() || training.command.size() != words.size())
    return NotAgain(run, "its command cannot be read");
  std::error_code error;
  if (!std::filesystem::is_directory(*folder, error))
    return NotAgain(run, fmt::format("its folder, {}, is not there any more", Printable(*folder)));
  return training;
}

Status RestoreVariables(const RunConfig& config_a, const RunConfig& config_b, Training& a,
                        Training& b) {
  std::set<std::string> names;
  for (const RunConfig* config : {&config_a, &config_b}) {
    for (const auto& [key, value] : *config)
      if (key.starts_with(kVariable)) names.insert(key);
  }
  for (const std::string& key : names) {
    const auto of_a = Find(config_a, key), of_b = Find(config_b, key);
    if (of_a == of_b) continue;
    for (const auto& [value, training] : {std::pair(&of_a, &a), std::pair(&of_b, &b)}) {
      if (*value && (IsRedacted(**value) || (*value)->size() > kVariableTextMax))
        return NotAgain(training->run, "of its variable " +
                                           Printable(key.substr(kVariable.size())) +
                                           " only a part is stored");
    }
    const std::string name = key.substr(kVariable.size());
    Set(name, of_a, a);
    Set(name, of_b, b);
  }
  return Status::Ok();
}

}  // namespace statcollect::client
