// TensorBoard event files: scalars, and statistics of tensors as scalars. The framing is that of
// TFRecord: length (8 bytes, little endian), its masked CRC-32C, the event, its masked CRC-32C.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "client/exports/exporter.h"
#include "client/exports/output.h"
#include "client/exports/tensorboard_event.pb.h"
#include "common/checksum.h"
#include "common/choice.h"
#include "common/endian.h"
#include "common/names.h"

namespace statcollect::client {
namespace {

constexpr std::size_t kValuesMax = 4096;  // of one event
constexpr double kNanosPerSecond = 1e9;
constexpr std::string_view kFilePrefix = "events.out.tfevents.";

std::uint32_t Masked(std::uint32_t crc) { return ((crc >> 15) | (crc << 17)) + 0xa282ead8u; }

void AppendFramed(std::string_view event, std::string& to) {
  const std::size_t begin = to.size();
  AppendLittleEndian(&to, std::uint64_t{event.size()});
  AppendLittleEndian(&to, Masked(Crc32c(std::string_view(to).substr(begin))));
  to += event;
  AppendLittleEndian(&to, Masked(Crc32c(event)));
}

struct Statistic {
  std::string_view name;
  std::optional<double> (*get)(const Numbers&);
  enum { kAlways, kIfNonzero, kOnRequest } written;
};

template <typename T>
std::optional<double> Number(const std::optional<T>& value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}

constexpr std::array<Statistic, 13> kStatistics = {{
    {"min", [](const Numbers& n) { return n.min; }, Statistic::kAlways},
    {"max", [](const Numbers& n) { return n.max; }, Statistic::kAlways},
    {"mean", [](const Numbers& n) { return n.mean; }, Statistic::kAlways},
    {"std", [](const Numbers& n) { return n.std; }, Statistic::kAlways},
    {"l2", [](const Numbers& n) { return n.l2; }, Statistic::kAlways},
    {"l1", [](const Numbers& n) { return n.l1; }, Statistic::kOnRequest},
    {"nan", [](const Numbers& n) { return Number(n.nan); }, Statistic::kIfNonzero},
    {"pos_inf", [](const Numbers& n) { return Number(n.pos_inf); }, Statistic::kIfNonzero},
    {"neg_inf", [](const Numbers& n) { return Number(n.neg_inf); }, Statistic::kIfNonzero},
    {"zero", [](const Numbers& n) { return Number(n.zero); }, Statistic::kOnRequest},
    {"neg", [](const Numbers& n) { return Number(n.neg); }, Statistic::kOnRequest},
    {"pos", [](const Numbers& n) { return Number(n.pos); }, Statistic::kOnRequest},
    {"numel", [](const Numbers& n) { return Number(n.numel); }, Statistic::kOnRequest},
}};

// The suffix that distinguishes tensors of the same name; "" for the first.
std::string PlaceText(const TensorKey& key) {
  std::string text;
  if (!key.output_path.empty()) text += "[" + key.output_path + "]";
  if (key.micro_batch > 0) text += fmt::format(" micro-batch {}", key.micro_batch);
  if (key.call > 0) text += fmt::format(" call {}", key.call);
  if (key.mode != Mode::kTrain) text += fmt::format(" {}", Name(key.mode));
  return text;
}

// The event file of one rank.
class EventFile {
 public:
  explicit EventFile(FileWriter out) : out_(std::move(out)) {}

  Status WriteVersion(double wall_time) {
    tensorboard::Event event;
    event.set_wall_time(wall_time);
    event.set_file_version("brain.Event:2");
    return Append(event);
  }
  Status Add(std::uint64_t step, std::string tag, double value) {
    if (event_.summary().value_size() > 0 && static_cast<std::uint64_t>(event_.step()) != step)
      STATCOLLECT_RETURN_IF_ERROR(EndStep(last_wall_time_));
    event_.set_step(static_cast<std::int64_t>(step));
    tensorboard::Summary::Value& added = *event_.mutable_summary()->add_value();
    added.set_tag(std::move(tag));
    added.set_simple_value(static_cast<float>(value));
    return Status::Ok();
  }
  // Writes what has been added, with the step's time.
  Status EndStep(double wall_time) {
    last_wall_time_ = wall_time;
    tensorboard::Event part;
    part.set_step(event_.step());
    part.set_wall_time(wall_time);
    auto& values = *event_.mutable_summary()->mutable_value();
    for (int i = 0; i < values.size(); ++i) {
      part.mutable_summary()->add_value()->Swap(values.Mutable(i));
      if (part.summary().value_size() < static_cast<int>(kValuesMax) && i + 1 < values.size())
        continue;
      STATCOLLECT_RETURN_IF_ERROR(Append(part));
      part.clear_summary();
    }
    event_.clear_summary();
    return Status::Ok();
  }
  double last_wall_time() const { return last_wall_time_; }
  Status Close() {
    STATCOLLECT_RETURN_IF_ERROR(EndStep(last_wall_time_));
    return out_.Close();
  }

 private:
  Status Append(const tensorboard::Event& event) {
    bytes_.clear();
    event.SerializeToString(&bytes_);
    AppendFramed(bytes_, out_.buffer());
    return out_.Flushed();
  }

  FileWriter out_;
  tensorboard::Event event_;  // of the step being read
  std::string bytes_;
  double last_wall_time_ = 0;
};

class TensorBoardExporter final : public Exporter {
 public:
  TensorBoardExporter(const ExportTarget& target, Partial partial,
                      std::vector<const Statistic*> chosen)
      : rank_folders_(target.rank_folders),
        run_(target.run),
        partial_(std::move(partial)),
        chosen_(std::move(chosen)) {}

  Status Write(const Observation& o) override {
    auto file = o.ranks.empty() ? FileOf(o.rank) : FileOf(std::nullopt);
    if (!file.ok()) return file.status();
    const Numbers numbers = NumbersOf(o);
    const std::string tag =
        fmt::format("{}/{}{}/", Name(o.def->key.kind), o.def->key.name, PlaceText(o.def->key));
    if (!chosen_.empty()) {
      for (const Statistic* statistic : chosen_)
        STATCOLLECT_RETURN_IF_ERROR(Add(**file, o.step, tag, *statistic, numbers));
      return Status::Ok();
    }
    for (const Statistic& statistic : kStatistics) {
      const bool written =
          statistic.written == Statistic::kAlways ||
          (statistic.written == Statistic::kIfNonzero && statistic.get(numbers).value_or(0) != 0);
      if (written) STATCOLLECT_RETURN_IF_ERROR(Add(**file, o.step, tag, statistic, numbers));
    }
    return Status::Ok();
  }

  Status Write(std::uint32_t rank, const ScalarRecord& scalar) override {
    auto file = FileOf(rank);
    if (!file.ok()) return file.status();
    std::string tag = scalar.name;
    if (scalar.micro_batch > 0) tag += fmt::format(" micro-batch {}", scalar.micro_batch);
    return (*file)->Add(scalar.step, std::move(tag), scalar.value);
  }

  // Writes the memory of phases, in MiB. The memory of the model's own tensors hardly changes and
  // is left out.
  Status Write(std::uint32_t rank, const MemoryRecord& memory) override {
    if (!memory.module.empty()) return Status::Ok();
    auto file = FileOf(rank);
    if (!file.ok()) return file.status();
    for (const MemoryQuantity quantity : {MemoryQuantity::kAllocated, MemoryQuantity::kMaxAllocated,
                                          MemoryQuantity::kReserved, MemoryQuantity::kHostRss}) {
      if (!memory.Has(quantity)) continue;
      std::string tag = fmt::format("memory/{}/{} MiB", Name(memory.phase), Name(quantity));
      if (memory.micro_batch > 0) tag += fmt::format(" micro-batch {}", memory.micro_batch);
      STATCOLLECT_RETURN_IF_ERROR((*file)->Add(
          memory.step, std::move(tag), static_cast<double>(memory.Of(quantity)) / (1 << 20)));
    }
    return Status::Ok();
  }

  Status Write(std::uint32_t rank, const DensityRecord& density) override {
    auto file = FileOf(rank);
    if (!file.ok() || density.total == 0) return file.status();
    std::string tag = fmt::format("density/{} ({})", density.input, Name(density.type));
    if (density.micro_batch > 0) tag += fmt::format(" micro-batch {}", density.micro_batch);
    return (*file)->Add(density.step, std::move(tag),
                        static_cast<double>(density.valid) / static_cast<double>(density.total));
  }

  Status Write(std::uint32_t rank, const EventRecord&) override {
    ++events_[rank];
    return Status::Ok();
  }

  Status Write(std::uint32_t rank, const StepRecord& end) override {
    auto file = FileOf(rank);
    if (!file.ok()) return file.status();
    const double wall_time = static_cast<double>(end.unix_nanos) / kNanosPerSecond;
    if (const auto whole = files_.find(std::nullopt); whole != files_.end())
      STATCOLLECT_RETURN_IF_ERROR(whole->second.EndStep(wall_time));
    return (*file)->EndStep(wall_time);
  }

  Status Finish() override {
    for (auto& [rank, file] : files_) STATCOLLECT_RETURN_IF_ERROR(file.Close());
    return partial_.Commit();
  }

  std::vector<std::string> Remarks() const override {
    std::uint64_t events = 0;
    for (const auto& [rank, count] : events_) events += count;
    if (events == 0) return {};
    return {fmt::format(
        "{} events left out: the format cannot hold them; statctl show {} --events lists them",
        events, run_)};
  }

 private:
  static Status Add(EventFile& file, std::uint64_t step, const std::string& tag,
                    const Statistic& statistic, const Numbers& numbers) {
    const auto value = statistic.get(numbers);
    return value ? file.Add(step, tag + std::string(statistic.name), *value) : Status::Ok();
  }

  // Without a rank: that of whole tensors.
  Result<EventFile*> FileOf(std::optional<std::uint32_t> rank) {
    const auto known = files_.find(rank);
    if (known != files_.end()) return &known->second;
    std::string folder = partial_.path();
    if (!rank || rank_folders_) {
      folder += rank ? fmt::format("/rank_{}", *rank) : fmt::format("/{}", kWholeFolder);
      STATCOLLECT_RETURN_IF_ERROR(MakeFolder(folder));
    }
    // Readers of the format look for the prefix; the rest tells files of one folder apart.
    const std::string whose = rank ? fmt::format("rank{}", *rank) : std::string(kWholeFolder);
    auto out = FileWriter::Create(fmt::format("{}/{}0.{}.{}", folder, kFilePrefix, run_, whose));
    if (!out.ok()) return out.status();
    EventFile& file = files_.emplace(rank, *std::move(out)).first->second;
    STATCOLLECT_RETURN_IF_ERROR(file.WriteVersion(0));
    return &file;
  }

  const bool rank_folders_;
  const std::string run_;
  Partial partial_;
  const std::vector<const Statistic*> chosen_;
  std::map<std::optional<std::uint32_t>, EventFile> files_;  // by rank
  std::map<std::uint32_t, std::uint64_t> events_;
};

Result<std::vector<const Statistic*>> Choose(const std::vector<std::string>& names) {
  std::vector<const Statistic*> chosen;
  for (const std::string& name : names) {
    const auto found = std::find_if(kStatistics.begin(), kStatistics.end(),
                                    [&](const Statistic& s) { return s.name == name; });
    if (found == kStatistics.end()) {
      std::vector<std::string> known;
      for (const Statistic& s : kStatistics) known.emplace_back(s.name);
      return Status(Code::kInvalidArgument, NotOneOf(name, known));
    }
    chosen.push_back(&*found);
  }
  return chosen;
}

bool IsEventFileOrRank(std::string_view name) {
  return name.starts_with(kFilePrefix) || name.starts_with("rank_") || name == kWholeFolder;
}

}  // namespace

Status CheckTensorBoardStatistics(const std::vector<std::string>& names) {
  return Choose(names).status();
}

Result<std::unique_ptr<Exporter>> MakeTensorBoardExporter(const ExportTarget& target) {
  auto chosen = Choose(target.statistics);
  if (!chosen.ok()) return chosen.status();
  auto partial = Partial::Folder(target.path, target.overwrite, IsEventFileOrRank,
                                 "event files, rank_<r> and whole folders only");
  if (!partial.ok()) return partial.status();
  return std::unique_ptr<Exporter>(
      std::make_unique<TensorBoardExporter>(target, *std::move(partial), *std::move(chosen)));
}

}  // namespace statcollect::client
