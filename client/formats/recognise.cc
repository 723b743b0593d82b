#include "client/formats/recognise.h"

#include <map>
#include <optional>

#include "client/formats/debug_mode_log.h"
#include "client/formats/file_tree.h"
#include "client/formats/mindspore_csv.h"
#include "client/formats/mindspore_tensor.h"
#include "client/formats/sglang_name.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

std::string AllFormats() {
  std::string names;
  for (int i = 0; i < kDumpFormatCount; ++i)
    names += (i == 0                      ? ""
              : i + 1 == kDumpFormatCount ? " or "
                                          : ", ") +
             std::string(Name(static_cast<DumpFormat>(i)));
  return names;
}

// By its name alone, but for JSON, whose beginning is read.
Result<std::optional<DumpFormat>> FormatOf(const FileTree& tree, const FilePath& path) {
  static const NumberPattern kSummary("step_", "_.txt");
  const std::string& name = path.back();
  const auto is = [](DumpFormat format) { return std::optional<DumpFormat>(format); };
  if (ParseSglangName(Joined(path)) || ParseSglangPass(name)) return is(DumpFormat::kSglang);
  if (name == "dump.json") return is(DumpFormat::kMsProbe);
  if (name == "statistic.csv" || ParseMindSporeTensorName(name) || ParseRawCannName(name))
    return is(DumpFormat::kMindSpore);
  if (kSummary.Match(name) || name.ends_with("_forward") || name.ends_with("_backward"))
    return is(DumpFormat::kOrt);
  if (name.ends_with(".log") && NumberAfter(name, "globalrank"))
    return is(DumpFormat::kTransformerEngine);
  if (!MayBeDebugModeLog(name)) return std::optional<DumpFormat>();
  auto file = tree.OpenFile(path, nullptr);
  if (!file.ok()) return file.status();
  const auto log = IsDebugModeLog(*file);
  if (!log.ok()) return log.status();
  if (*log) return is(DumpFormat::kDebugMode);
  // msProbe's dump.json may have been renamed; a folder of it has that name.
  const bool named_itself = tree.files().size() == 1 && path.size() == 1;
  return named_itself && name.ends_with(".json") ? is(DumpFormat::kMsProbe) : std::nullopt;
}

}  // namespace

Result<DumpFormat> RecogniseDump(const std::string& path) {
  Tally tally;
  const auto tree = FileTree::Open(path, &tally);
  if (!tree.ok()) return tree.status();
  std::map<DumpFormat, const FilePath*> found;
  for (const FilePath& file : tree->files()) {
    const auto format = FormatOf(*tree, file);
    if (!format.ok()) return format.status();
    if (*format) found.emplace(**format, &file);
  }
  if (found.size() == 1) return found.begin()->first;
  const std::string where = Printable(path, 4000) + ": found ";
  if (found.empty()) {
    const bool empty = tree->files().empty();
    return Status(
        Code::kNotFound,
        where + (empty ? "no files" : "no file whose name is known") + "; expected a dump of " +
            AllFormats() +
            (empty ? "" : "; give that word before the path if its files have other names"));
  }
  const auto named = [](const auto& entry) {
    return std::string(Name(entry.first)) + " ('" + Printable(Joined(*entry.second)) + "')";
  };
  return Status(Code::kInvalidArgument,
                where + "files of " + named(*found.begin()) + " and of " +
                    named(*std::next(found.begin())) +
                    "; expected those of one tool; give its word before the path");
}

}  // namespace statcollect::client::formats
