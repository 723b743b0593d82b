// Folders of ONNX Runtime's StatisticsSubscriber: step_<k>/<name>_forward with step_<k>/order.txt,
// and merged summaries step_<k>_.txt.
#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "client/formats/dump.h"
#include "client/formats/ort_text.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr char kOrderFile[] = "order.txt";
constexpr char kOrtForm[] =
    "folders step_<k> with one file per tensor, or merged summaries step_<k>_.txt";

// Finds each module's parent. Indices number the modules depth first, and a parent ends after its
// children. So the parent is, of the modules with lower index, lower depth and a later end, the one
// with the highest index. Containers that run nothing themselves (ModuleList) are not in the dump;
// their modules get the container's parent.
class ModuleTree {
 public:
  bool Knows(const std::string& name) const { return names_.contains(name); }

  // In the order of execution.
  void Learn(const OrtRecord& record) {
    if (record.backward) return;
    names_.insert(record.name);
    parents_.clear();
    const auto module = ParseOrtName(record.name);
    if (!module || record.depth < 0) return;
    modules_.insert_or_assign(module->index, Node{module->class_name, record.depth, ++clock_});
  }

  // "Block_14"; empty at the root and where nothing is known.
  std::string ParentOf(const OrtRecord& record) const {
    const auto module = ParseOrtName(record.name);
    if (!module || record.depth < 0) return {};
    const auto [known, is_new] = parents_.try_emplace(module->index);
    if (is_new) known->second = FindParent(module->index);
    return known->second;
  }

 private:
  std::string FindParent(std::uint64_t index) const {
    const auto own = modules_.find(index);
    if (own == modules_.end()) return {};
    for (auto it = std::make_reverse_iterator(own); it != modules_.rend(); ++it) {
      if (it->second.depth < own->second.depth && it->second.ended > own->second.ended)
        return it->second.class_name + "_" + std::to_string(it->first);
    }
    return {};
  }

  struct Node {
    std::string class_name;
    std::int32_t depth = 0;
    std::uint64_t ended = 0;  // when its forward pass did; order only
  };
  std::map<std::uint64_t, Node> modules_;
  std::unordered_set<std::string> names_;
  mutable std::unordered_map<std::uint64_t, std::string> parents_;  // found so far
  std::uint64_t clock_ = 0;
};

// Turns records into observations of one step.
class OrtReader {
 public:
  OrtReader(const Reading& reading, ObservationSink& sink) : reading_(reading), sink_(sink) {}

  // Reads the names in the file, so that the module tree is known before any record is passed on.
  Status Learn(ByteSource& file) {
    lines_.Reset(file);
    OrtRecord record;
    while (true) {
      const auto more = ReadOrtRecord(lines_, false, &record);
      if (!more.ok() || !*more) return more.status();
      if (!record.backward && !tree_.Knows(record.name)) tree_.Learn(record);
    }
  }
  // As Learn for a file with a single tensor: its first line is enough.
  void LearnName(const Folder& folder, const std::string& name) {
    if (known_files_.contains(name)) return;
    auto file = folder.OpenFile(name);
    OrtRecord record;
    if (!file.ok()) return;  // reported when it is read
    lines_.Reset(*file);
    if (const auto header = ReadOrtHeader(lines_, &record); header.ok() && *header)
      tree_.Learn(record);
    known_files_.insert(name);
  }

  Status Take(ByteSource& file, std::uint64_t step) {
    lines_.Reset(file);
    OrtRecord record;
    std::uint64_t records = 0;
    while (true) {
      const auto more = ReadOrtRecord(lines_, reading_.options.samples, &record);
      if (!more.ok()) return more.status();
      if (!*more) break;
      ++records;
      if (!record.backward && !tree_.Knows(record.name)) tree_.Learn(record);
      STATCOLLECT_RETURN_IF_ERROR(Hand(record, step));
    }
    ++reading_.tally.files;
    return records > 0 ? Status::Ok()
                       : BadInput(file.path(), 1, "an empty file", "the statistics of a tensor");
  }

 private:
  Status Hand(const OrtRecord& record, std::uint64_t step) {
    if (record.dtype == DType::kUnspecified) {
      reading_.tally.Skip("dtype " + Printable(record.dtype_text, 40));
      return Status::Ok();
    }
    Observation observation = ToObservation(record, reading_.options.trust_std, &reading_.tally);
    observation.step = step;
    observation.def.parent = tree_.ParentOf(record);
    return sink_.Take(std::move(observation));
  }

  const Reading& reading_;
  ObservationSink& sink_;
  LineReader lines_;
  ModuleTree tree_;
  std::unordered_set<std::string> known_files_;
};

// --- in which order the files of a step were written

bool IsBackward(const std::string& name) { return name.ends_with("_backward"); }
std::string StemOf(const std::string& name) { return name.substr(0, name.rfind('_')); }

// Whether times of modification can be the order of execution: no backward before its forward. In a
// copied folder they are anything.
bool TimesAreOrder(const std::vector<Entry>& files) {
  std::unordered_map<std::string, std::int64_t> forward;
  for (const Entry& file : files) {
    if (!IsBackward(file.name)) forward[StemOf(file.name)] = file.modified_nanos;
  }
  return std::all_of(files.begin(), files.end(), [&](const Entry& file) {
    const auto found = IsBackward(file.name) ? forward.find(StemOf(file.name)) : forward.end();
    return found == forward.end() || found->second <= file.modified_nanos;
  });
}

void SortByTime(std::vector<Entry>* files) {
  std::stable_sort(files->begin(), files->end(), [](const Entry& a, const Entry& b) {
    return a.modified_nanos < b.modified_nanos;
  });
}

// Forward by module index upwards, then what was inspected, then backward by index downwards.
void SortByName(std::vector<Entry>* files) {
  const auto key = [](const Entry& file) {
    const auto module = ParseOrtName(StemOf(file.name));
    const std::uint64_t index = module ? module->index : ~std::uint64_t{0};
    return IsBackward(file.name) ? std::pair(1, ~index) : std::pair(0, index);
  };
  std::stable_sort(files->begin(), files->end(),
                   [&](const Entry& a, const Entry& b) { return key(a) < key(b); });
}

// One step's folder: its files in the order of execution.
class StepFolder {
 public:
  StepFolder(const Reading& reading, const ObservationSink& sink, const Folder& folder)
      : reading_(reading), sink_(sink), folder_(folder) {}

  Result<std::vector<std::string>> Order() {
    auto entries = folder_.List();
    if (!entries.ok()) return entries.status();
    bool has_order = false;
    std::vector<Entry> files;
    for (Entry& entry : *entries) {
      if (entry.name == kOrderFile && entry.type == EntryType::kFile) {
        has_order = true;
      } else if (entry.type == EntryType::kFile &&
                 (entry.name.ends_with("_forward") || IsBackward(entry.name))) {
        files.push_back(std::move(entry));
      } else {
        reading_.tally.Skip(entry.type == EntryType::kLink ? "symbolic link"
                                                           : "other file or folder");
      }
    }
    return has_order ? FromOrderFile(std::move(files)) : Guess(std::move(files));
  }

 private:
  Result<std::vector<std::string>> Guess(std::vector<Entry> files) {
    const bool by_time = TimesAreOrder(files);
    by_time ? SortByTime(&files) : SortByName(&files);
    if (!files.empty()) {
      reading_.tally.Note(
          by_time ? "a step has no order.txt; its files were ordered by modification time"
                  : "a step has no order.txt, and its modification times are not in order; its "
                    "files were "
                    "ordered by their module's number");
    }
    std::vector<std::string> names;
    for (Entry& file : files) names.push_back(std::move(file.name));
    return names;
  }

  Result<std::vector<std::string>> FromOrderFile(std::vector<Entry> files) {
    std::unordered_set<std::string> left;
    for (const Entry& file : files) left.insert(file.name);
    std::vector<std::string> names;
    STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(ReadOrder(&left, &names), sink_));
    if (left.empty()) return names;
    reading_.tally.Note(
        "some files are missing from order.txt; they follow the others, ordered by their module's "
        "number");
    std::erase_if(files, [&](const Entry& file) { return !left.contains(file.name); });
    SortByName(&files);
    for (Entry& file : files) names.push_back(std::move(file.name));
    return names;
  }

  Status ReadOrder(std::unordered_set<std::string>* left, std::vector<std::string>* names) {
    auto file = folder_.OpenFile(kOrderFile, &reading_.tally.bytes);
    if (!file.ok()) return file.status();
    LineReader lines;
    lines.Reset(*file);
    std::unordered_set<std::string> seen;
    std::string_view line;
    while (true) {
      const auto more = lines.Next(&line);
      if (!more.ok() || !*more) return more.status();
      if (line.empty()) continue;
      const std::string name(line);
      if (name.find('/') != std::string::npos ||
          !(name.ends_with("_forward") || IsBackward(name)) ||
          !ValidateTensorName("file", name).ok())
        return lines.Bad("'" + name + "'",
                         "the name of a file in this folder that ends in _forward or _backward");
      if (left->erase(name) > 0) {
        names->push_back(name);
        seen.insert(name);
      } else {
        reading_.tally.Skip(seen.contains(name) ? "repeated line of order.txt"
                                                : "named in order.txt, but missing");
      }
    }
  }

  const Reading& reading_;
  const ObservationSink& sink_;
  const Folder& folder_;
};

// One rank's folder, or one merged summary that was named itself.
class OrtRank {
 public:
  OrtRank(const Reading& reading, ObservationSink& sink)
      : reading_(reading), sink_(sink), reader_(reading, sink) {}

  Status ReadFolder(const Folder& folder) {
    const auto entries = folder.List();
    if (!entries.ok()) return entries.status();
    std::map<std::uint64_t, std::string> steps, summaries;
    for (const Entry& entry : *entries) {
      const auto step = kStep.Match(entry.name), summary = kSummary.Match(entry.name);
      const bool is_step = step && entry.type == EntryType::kFolder;
      const bool is_summary = summary && entry.type == EntryType::kFile;
      if (!is_step && !is_summary) {
        reading_.tally.Skip(entry.type == EntryType::kLink ? "symbolic link"
                                                           : "other file or folder");
        continue;
      }
      const auto [known, is_new] =
          is_step ? steps.emplace(*step, entry.name) : summaries.emplace(*summary, entry.name);
      if (!is_new)
        return BadInput(folder.path(), 0, "'" + known->second + "' and '" + entry.name + "'",
                        "each step only once");
    }
    if (steps.empty() && summaries.empty()) return Nothing(folder, *entries);
    if (!steps.empty())
      reading_.tally.Skip("merged summary next to step folders", summaries.size());
    for (const auto& [step, name] : steps.empty() ? summaries : steps) {
      if (!reading_.options.steps.Contains(step)) continue;
      STATCOLLECT_RETURN_IF_ERROR(steps.empty() ? ReadSummary(folder, name, step)
                                                : ReadStep(folder, name, step));
      STATCOLLECT_RETURN_IF_ERROR(sink_.EndStep(step));
    }
    return Status::Ok();
  }

  Status ReadNamedSummary(const std::string& path, std::uint64_t step) {
    if (!reading_.options.steps.Contains(step)) return Status::Ok();
    const auto learnt = [&] {
      auto file = OpenNamedFile(path);
      return file.ok() ? reader_.Learn(*file) : file.status();
    };
    const auto taken = [&] {
      auto file = OpenNamedFile(path, &reading_.tally.bytes);
      return file.ok() ? reader_.Take(*file, step) : file.status();
    };
    (void)learnt();  // a bad file is reported when it is taken
    STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(taken(), sink_));
    return sink_.EndStep(step);
  }

  static const NumberPattern kStep, kSummary;

 private:
  // People point at the folder above the ranks, or above the two merged sides.
  Status Nothing(const Folder& folder, const std::vector<Entry>& entries) const {
    std::string inside;
    for (const Entry& entry : entries) {
      const auto sub = entry.type == EntryType::kFolder
                           ? folder.Sub(entry.name)
                           : Result<Folder>(Status(Code::kNotFound, ""));
      const auto below = sub.ok() ? sub->List() : Result<std::vector<Entry>>(std::vector<Entry>{});
      if (!below.ok()) continue;
      const bool has_steps = std::any_of(below->begin(), below->end(), [](const Entry& e) {
        return kStep.Match(e.name) || kSummary.Match(e.name);
      });
      if (has_steps && inside.size() < 60) inside += (inside.empty() ? "" : ", ") + entry.name;
    }
    if (inside.empty()) return BadInput(folder.path(), 0, "no steps", kOrtForm);
    return BadInput(
        folder.path(), 0, "no steps, but folders with steps (" + inside + ")",
        std::string(kOrtForm) +
            "; name one of them, or import them as ranks with --rank-pattern, such as out_{rank}");
  }

  Status ReadStep(const Folder& parent, const std::string& name, std::uint64_t step) {
    const auto folder = parent.Sub(name);
    if (!folder.ok()) return reading_.BadFile(folder.status(), sink_);
    const auto order = StepFolder(reading_, sink_, *folder).Order();
    if (!order.ok()) return order.status();
    for (const std::string& file : *order) reader_.LearnName(*folder, file);
    for (const std::string& file_name : *order) {
      const auto read = [&] {
        auto file = folder->OpenFile(file_name, &reading_.tally.bytes);
        return file.ok() ? reader_.Take(*file, step) : file.status();
      };
      STATCOLLECT_RETURN_IF_ERROR(reading_.BadFile(read(), sink_));
    }
    return Status::Ok();
  }

  Status ReadSummary(const Folder& folder, const std::string& name, std::uint64_t step) {
    if (auto file = folder.OpenFile(name); !learnt_ && file.ok()) (void)reader_.Learn(*file);
    learnt_ = true;
    const auto read = [&] {
      auto file = folder.OpenFile(name, &reading_.tally.bytes);
      return file.ok() ? reader_.Take(*file, step) : file.status();
    };
    return reading_.BadFile(read(), sink_);
  }

  const Reading& reading_;
  ObservationSink& sink_;
  OrtReader reader_;
  bool learnt_ = false;  // from the first summary; later ones are like it
};

const NumberPattern OrtRank::kStep("step_", "");
const NumberPattern OrtRank::kSummary("step_", "_.txt");

class OrtDump final : public Dump {
 public:
  OrtDump(const Reading& reading, std::optional<Folder> folder)
      : reading_(reading), folder_(std::move(folder)) {}

  Status Open() {
    const ReadOptions& options = reading_.options;
    if (options.rank_pattern.empty()) {
      ranks_ = {options.rank.value_or(0)};
      return Status::Ok();
    }
    const auto pattern = NumberPattern::Parse(options.rank_pattern);
    if (!pattern.ok()) return pattern.status();
    if (!folder_)
      return BadInput(options.path, 0, "a file", "a folder that contains the ranks' folders");
    auto found = FindRanks(*folder_, *pattern);
    if (!found.ok()) return found.status();
    if (found->empty())
      return BadInput(options.path, 0, "no rank folders",
                      "folders named " + Printable(options.rank_pattern));
    for (const RankFolder& rank : *found) ranks_.push_back(rank.rank);
    folders_ = *std::move(found);
    return Status::Ok();
  }

  const std::vector<std::uint32_t>& ranks() const override { return ranks_; }

  Status Read(std::uint32_t rank, ObservationSink& sink) override {
    OrtRank reader(reading_, sink);
    if (!folder_) return ReadFile(reader);
    if (folders_.empty()) return reader.ReadFolder(*folder_);
    const auto own = std::find_if(folders_.begin(), folders_.end(),
                                  [&](const RankFolder& f) { return f.rank == rank; });
    const auto folder = folder_->Sub(own->name);
    return folder.ok() ? reader.ReadFolder(*folder) : folder.status();
  }

 private:
  Status ReadFile(OrtRank& reader) {
    const std::string& path = reading_.options.path;
    const auto step = OrtRank::kSummary.Match(std::string_view(path).substr(path.rfind('/') + 1));
    if (!step) return BadInput(path, 0, "a file", std::string("a folder with ") + kOrtForm);
    return reader.ReadNamedSummary(path, *step);
  }

  const Reading reading_;
  std::optional<Folder> folder_;  // none: the path is a file
  std::vector<std::uint32_t> ranks_;
  std::vector<RankFolder> folders_;  // of the pattern
};

}  // namespace

Result<std::unique_ptr<Dump>> OpenOrtDump(const Reading& reading) {
  const auto is_folder = IsFolder(reading.options.path);
  if (!is_folder.ok()) return is_folder.status();
  std::optional<Folder> folder;
  if (*is_folder) {
    auto opened = Folder::Open(reading.options.path);
    if (!opened.ok()) return opened.status();
    folder = *std::move(opened);
  }
  auto dump = std::make_unique<OrtDump>(reading, std::move(folder));
  STATCOLLECT_RETURN_IF_ERROR(dump->Open());
  return std::unique_ptr<Dump>(std::move(dump));
}

}  // namespace statcollect::client::formats
