#include "client/commands/code_state.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

#include "common/text.h"
#include "tls/digest.h"

extern char** environ;  // NOLINT: POSIX declares it nowhere

namespace statcollect::client {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kFileBytesMax =
    4 << 20;  // of a file that git does not know; of a larger one its size and time count
constexpr std::size_t kEntriesMax = 20'000;  // of a folder in which Python files are looked for

// Of a terminal or a session, or statctl's own.
constexpr std::array<std::string_view, 14> kNotOfTheTraining = {
    "_=",     "COLUMNS=", "DBUS_",    "LINES=", "LS_COLORS=", "OLDPWD=", "PS1=",
    "SHLVL=", "SSH_",     "STATCTL_", "TERM",   "WINDOWID=",  "XDG_",    "STATAGENT_COLLECTOR="};

// Names and contents, each with its length, so that nothing can be taken for something else.
class Digest {
 public:
  void Add(std::string_view text) {
    text_ += fmt::format("{}:", text.size());
    text_ += text;
  }
  std::string Hex() const { return tls::Sha256(text_); }

 private:
  std::string text_;
};

void AddFile(const fs::path& path, Digest& digest) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return;
  digest.Add(path.string());
  const auto size = fs::file_size(path, error);
  if (size > kFileBytesMax) {
    digest.Add(
        fmt::format("{} {}", size, fs::last_write_time(path, error).time_since_epoch().count()));
    return;
  }
  std::ifstream file(path, std::ios::binary);
  digest.Add(std::string(std::istreambuf_iterator<char>(file), {}));
}

void AddEnvironment(Digest& digest) {
  std::vector<std::string_view> entries;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (std::none_of(kNotOfTheTraining.begin(), kNotOfTheTraining.end(),
                     [text](std::string_view name) { return text.starts_with(name); }))
      entries.push_back(text);
  }
  std::sort(entries.begin(), entries.end());
  for (const std::string_view entry : entries) digest.Add(entry);
}

// The pathspec of what is in the working tree, without the folder if that is inside of it, too.
std::vector<std::string> TreeWithout(const std::string& folder) {
  std::vector<std::string> spec = {":/"};
  std::error_code error;
  const auto top = OutputOf({"git", "rev-parse", "--show-toplevel"});
  if (!top) return spec;
  const fs::path root =
      fs::weakly_canonical(top->substr(0, top->find_last_not_of('\n') + 1), error);
  const fs::path inside = fs::weakly_canonical(folder, error).lexically_relative(root);
  if (!inside.empty() && *inside.begin() != ".." && inside != ".")
    spec.push_back(":(top,exclude,literal)" + inside.string());
  return spec;
}

// False where git does not know the working directory.
bool AddCommit(const std::string& data_folder, Digest& digest) {
  const auto commit = OutputOf({"git", "rev-parse", "HEAD"});
  if (!commit) return false;
  const auto of_tree = [spec = TreeWithout(data_folder)](std::vector<std::string> command) {
    command.emplace_back("--");
    command.insert(command.end(), spec.begin(), spec.end());
    return OutputOf(command);
  };
  const auto changed = of_tree({"git", "diff", "HEAD", "--binary"});
  const auto unknown = of_tree({"git", "ls-files", "--others", "--exclude-standard", "-z"});
  if (!changed || !unknown) return false;
  digest.Add(*commit);
  digest.Add(*changed);
  for (const std::string_view name : PartsOf(*unknown, '\0')) AddFile(fs::path(name), digest);
  return true;
}

bool IsHidden(const fs::path& name) {
  return name.native().starts_with('.') || name == "site-packages" || name == "node_modules";
}

// The Python files below a folder, in the order of their names. Links to folders are not followed.
void AddSources(const fs::path& folder, Digest& digest) {
  std::error_code error;
  std::vector<fs::path> files;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied,
                                         error);
  for (std::size_t seen = 0; !error && entry != fs::end(entry) && seen < kEntriesMax;
       entry.increment(error), ++seen) {
    const fs::path& path = entry->path();
    std::error_code unknown;
    if (entry->is_directory(unknown) && IsHidden(path.filename()))
      entry.disable_recursion_pending();
    if (path.extension() == ".py") files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& path : files) AddFile(path, digest);
}

// What Python may import: it looks beside the script, and `python -m` in the working directory.
void AddImports(const Training& training, Digest& digest) {
  std::error_code error;
  std::set<fs::path> folders = {fs::current_path(error)};
  for (const std::string& word : training.command) {
    const fs::path path = fs::weakly_canonical(word, error);
    if (path.extension() == ".py" && fs::is_regular_file(path, error))
      folders.insert(path.parent_path());
  }
  for (const fs::path& folder : folders) AddSources(folder, digest);
}

}  // namespace

std::string CodeState(const Training& training, const std::string& data_folder) {
  Digest digest;
  std::error_code error;
  digest.Add(STATCOLLECT_VERSION);
  digest.Add(fs::current_path(error).string());
  for (const std::string& word : training.command) digest.Add(word);
  for (const auto& [name, value] : training.environment) digest.Add(name + "=" + value);
  digest.Add(training.steps);
  digest.Add(training.stop_after ? std::to_string(*training.stop_after) : "");
  AddEnvironment(digest);
  if (!AddCommit(data_folder, digest)) {
    for (const std::string& word : training.command) AddFile(word, digest);
  }
  AddImports(training, digest);
  return digest.Hex();
}

}  // namespace statcollect::client
