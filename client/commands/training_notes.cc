#include "client/commands/training_notes.h"

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string_view>
#include <system_error>

namespace statcollect::client {

NotesFile::NotesFile() {
  std::error_code error;
  std::string path =
      (std::filesystem::temp_directory_path(error) / "statctl-notes-XXXXXX").string();
  const int fd = error ? -1 : mkostemp(path.data(), 0);
  if (fd < 0) return;
  close(fd);
  path_ = path;
}

NotesFile::~NotesFile() {
  if (!path_.empty()) (void)unlink(path_.c_str());
}

TrainingNotes NotesFile::Read() const {
  TrainingNotes notes;
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {  // PID WORD REST
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    const std::string_view text = std::string_view(line).substr(space + 1);
    const auto rest = [text](std::string_view word) {
      return std::string(text.substr(word.size()));
    };
    if (text.starts_with("python")) notes.python = true;
    if (text.starts_with("torch ")) notes.torch = true;
    if (text == "optimizer") notes.optimizer = true;
    if (text == "by hand") notes.by_hand = true;
    if (text == "recording") ++notes.recording;
    if (text.starts_with("failed ")) notes.failed.push_back(rest("failed "));
    if (text.starts_with("nothing ")) notes.nothing.push_back(rest("nothing "));
  }
  return notes;
}

}  // namespace statcollect::client
