// The files of a dump that lie in folders of any names.
#ifndef STATCOLLECT_CLIENT_FORMATS_FILE_TREE_H_
#define STATCOLLECT_CLIENT_FORMATS_FILE_TREE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "client/formats/observation.h"
#include "client/formats/source.h"
#include "common/status.h"

namespace statcollect::client::formats {

using FilePath = std::vector<std::string>;  // components, the file's name last

// "a/b".
std::string Joined(const FilePath& path);

class FileTree {
 public:
  // The regular files at and below `path`, at most eight folders deep, sorted by name, numbers in
  // it by value; or the one file that it is. Links inside are counted and left out.
  static Result<FileTree> Open(const std::string& path, Tally* tally);

  const std::vector<FilePath>& files() const { return files_; }
  Result<FileSource> OpenFile(const FilePath& file, std::uint64_t* bytes) const;
  // For messages.
  std::string PathOf(const FilePath& file) const { return folder_.PathOf(Joined(file)); }

 private:
  explicit FileTree(Folder folder) : folder_(std::move(folder)) {}
  Status Find(const Folder& folder, FilePath* above, Tally* tally);

  Folder folder_;
  std::vector<FilePath> files_;
};

// The number that follows the word and at most one of "=_-" in the text, where the word stands
// last, in small or capital letters: 3 for "rank" in "run/Rank_3.json". Empty if there is none.
std::optional<std::uint64_t> NumberAfter(std::string_view text, std::string_view word);

}  // namespace statcollect::client::formats

#endif  // STATCOLLECT_CLIENT_FORMATS_FILE_TREE_H_
