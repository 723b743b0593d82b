#include "client/formats/file_tree.h"

#include <algorithm>
#include <utility>

#include "common/parse.h"

namespace statcollect::client::formats {
namespace {

constexpr std::size_t kTreeDepthMax = 8;

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace

std::string Joined(const FilePath& path) {
  std::string joined;
  for (const std::string& name : path) joined += (joined.empty() ? "" : "/") + name;
  return joined;
}

Result<FileTree> FileTree::Open(const std::string& path, Tally* tally) {
  const auto is_folder = IsFolder(path);
  if (!is_folder.ok()) return is_folder.status();
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  auto folder = Folder::Open(*is_folder ? path : parent);
  if (!folder.ok()) return folder.status();
  FileTree tree(*std::move(folder));
  if (!*is_folder) {
    tree.files_ = {{path.substr(slash == std::string::npos ? 0 : slash + 1)}};
    return tree;
  }
  FilePath above;
  STATCOLLECT_RETURN_IF_ERROR(tree.Find(tree.folder_, &above, tally));
  return tree;
}

Status FileTree::Find(const Folder& folder, FilePath* above, Tally* tally) {
  const auto entries = folder.List();
  if (!entries.ok()) return entries.status();
  for (const Entry& entry : *entries) {
    if (entry.type == EntryType::kFolder && above->size() < kTreeDepthMax) {
      const auto below = folder.Sub(entry.name);
      if (!below.ok()) return below.status();
      above->push_back(entry.name);
      STATCOLLECT_RETURN_IF_ERROR(Find(*below, above, tally));
      above->pop_back();
    } else if (entry.type == EntryType::kFile) {
      files_.push_back(*above);
      files_.back().push_back(entry.name);
    } else {
      tally->Skip(entry.type == EntryType::kLink ? "symbolic link" : "other file or folder");
    }
  }
  return files_.size() <= kFolderEntriesMax
             ? Status::Ok()
             : BadInput(folder.path(), 0,
                        "more than " + std::to_string(kFolderEntriesMax) + " files", "fewer");
}

Result<FileSource> FileTree::OpenFile(const FilePath& file, std::uint64_t* bytes) const {
  std::optional<Folder> below;
  for (std::size_t i = 0; i + 1 < file.size(); ++i) {
    auto next = (below ? *below : folder_).Sub(file[i]);
    if (!next.ok()) return next.status();
    below = *std::move(next);
  }
  return (below ? *below : folder_).OpenFile(file.back(), bytes);
}

std::optional<std::uint64_t> NumberAfter(std::string_view text, std::string_view word) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), Lower);
  for (std::size_t at = lower.rfind(word); at != std::string::npos;
       at = at == 0 ? std::string::npos : lower.rfind(word, at - 1)) {
    std::string_view rest = text.substr(at + word.size());
    if (!rest.empty() && std::string_view("=_-").find(rest[0]) != std::string_view::npos)
      rest.remove_prefix(1);
    if (const auto number = ParseLeadingNumber<std::uint64_t>(rest)) return number->number;
  }
  return std::nullopt;
}

}  // namespace statcollect::client::formats
