// SGLang's dumps: a file of torch.save for each tensor, whose name says which, or one for each
// forward pass.
#include <algorithm>
#include <map>
#include <memory>
#include <tuple>
#include <utility>

#include "client/formats/dump.h"
#include "client/formats/file_tree.h"
#include "client/formats/sglang_name.h"
#include "client/formats/torch_file.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

constexpr char kSglangForm[] =
    "step=<S>___rank=<R>___dump_index=<I>___name=<NAME>.pt, or "
    "TP<T>_PP<P>_Rank<R>_pid<I>/Pass<S>.pt";

struct SglangFile {
  std::uint64_t step = 0, index = 0;
  FilePath path;
  std::optional<SglangName> name;  // none: of a whole pass
};

// The tensors of one rank, in order.
class SglangReader {
 public:
  SglangReader(const Reading& reading, ObservationSink& sink) : reading_(reading), sink_(sink) {}

  Status Read(ByteSource& source, const SglangFile& file) {
    if (file.step != step_) calls_.clear();
    step_ = file.step;
    ++reading_.tally.files;
    auto opened = TorchFile::Open(source);
    if (!opened.ok()) return opened.status();
    TorchFile torch = *std::move(opened);
    const Pickle& content = torch.content();
    if (!file.name) {
      const Pickle::Value& root = content.root();
      if (root.type != Pickle::Type::kDict)
        return BadInput(source.path(), 0, "a " + content.NameOf(root), "a dictionary of tensors");
      for (std::size_t i = 0; i + 1 < root.items.size(); i += 2)
        STATCOLLECT_RETURN_IF_ERROR(Take(torch, source, content[root.items[i + 1]],
                                         SglangPassTensor(content[root.items[i]].text)));
      return Status::Ok();
    }
    // {"value": ..., "meta": {"name": ..., TAG: ...}}, or the value by itself. The name of the file
    // is not enough where a name has a "___" in it.
    const Pickle::Value* const value = content.Find(content.root(), "value");
    const Pickle::Value* const meta = content.Find(content.root(), "meta");
    SglangName named = *file.name;
    if (const auto* const name = meta == nullptr ? nullptr : content.Find(*meta, "name");
        name != nullptr && name->type == Pickle::Type::kText) {
      named.name = name->text;
      std::erase_if(named.tags,
                    [&](const auto& tag) { return content.Find(*meta, tag.first) == nullptr; });
    }
    return Take(torch, source, value == nullptr ? content.root() : *value,
                SglangTensor(named.name, named.tags));
  }

 private:
  Status Take(TorchFile& torch, const ByteSource& source, const Pickle::Value& value,
              const TensorDef& def) {
    return torch.Visit(
        value,
        {.tensor =
             [&](TorchFile::Tensor tensor) {
               Observation o{.step = step_, .def = At(def, tensor.path)};
               STATCOLLECT_RETURN_IF_ERROR(Check(o.def, source));
               o.def.key.call = calls_[o.def.key]++;
               o.layout = std::move(tensor.layout);
               o.stats = tensor.stats;
               o.sketch = std::move(tensor.sketch);
               return sink_.Take(std::move(o));
             },
         .number =
             [&](const std::string& path, double number) {
               const TensorDef at = At(def, path);
               STATCOLLECT_RETURN_IF_ERROR(Check(at, source));
               const std::string& below = at.key.output_path;
               return sink_.TakeScalar({.name = (at.key.name + (below.empty() ? "" : "." + below)),
                                        .step = step_,
                                        .micro_batch = calls_[at.key]++,
                                        .value = number});
             },
         .other =
             [&](const std::string& kind) {
               reading_.tally.Skip("value that is no tensor (" + kind + ")");
             }});
  }

  static TensorDef At(TensorDef def, const std::string& path) {
    std::string& whole = def.key.output_path;
    if (!path.empty()) whole += (whole.empty() ? "" : ".") + path;
    return def;
  }

  static Status Check(const TensorDef& def, const ByteSource& source) {
    Status valid = ValidateTensorName("activation", def.key.name);
    if (valid.ok() && !def.key.output_path.empty())
      valid = ValidateTensorName("position", def.key.output_path);
    return valid.ok() ? valid
                      : BadInput(source.path(), 0, "an invalid name (" + valid.message() + ")",
                                 "a valid one");
  }

  const Reading& reading_;
  ObservationSink& sink_;
  std::uint64_t step_ = 0;
  std::map<TensorKey, std::uint32_t> calls_;  // of the step, so far
};

class SglangDump final : public Dump {
 public:
  explicit SglangDump(const Reading& reading, FileTree tree)
      : reading_(reading), tree_(std::move(tree)) {}

  Status Find() {
    for (const FilePath& path : tree_.files()) STATCOLLECT_RETURN_IF_ERROR(Add(path));
    for (auto& [rank, files] : files_) {
      ranks_.push_back(rank);
      const auto place = [](const SglangFile& f) { return std::tie(f.step, f.index, f.path); };
      std::sort(files.begin(), files.end(),
                [&](const SglangFile& a, const SglangFile& b) { return place(a) < place(b); });
      STATCOLLECT_RETURN_IF_ERROR(CheckOneDump(rank, files));
    }
    if (!ranks_.empty()) return Status::Ok();
    return BadInput(reading_.options.path, 0,
                    tree_.files().empty() ? "no files" : "no file of that name", kSglangForm);
  }

  const std::vector<std::uint32_t>& ranks() const override { return ranks_; }

  Status Read(std::uint32_t rank, ObservationSink& sink) override {
    SglangReader reader(reading_, sink);
    const std::vector<SglangFile>& files = files_[rank];
    for (std::size_t i = 0; i < files.size(); ++i) {
      const SglangFile& file = files[i];
      if (reading_.options.steps.Contains(file.step)) {
        auto source = tree_.OpenFile(file.path, &reading_.tally.bytes);
        STATCOLLECT_RETURN_IF_ERROR(
            reading_.BadFile(source.ok() ? reader.Read(*source, file) : source.status(), sink));
      }
      if (i + 1 == files.size() || files[i + 1].step != file.step)
        STATCOLLECT_RETURN_IF_ERROR(sink.EndStep(file.step));
    }
    return Status::Ok();
  }

 private:
  Status Add(const FilePath& path) {
    const std::string whole = Joined(path);
    SglangFile file{.path = path, .name = ParseSglangName(whole)};
    // The user may have named the folder that says the rank.
    const auto pass = ParseSglangPass(tree_.PathOf(path));
    if (!file.name && !pass) {
      reading_.tally.Skip("other file or folder");
      return Status::Ok();
    }
    file.step = file.name ? file.name->step : pass->pass;
    file.index = file.name ? file.name->index : 0;
    const std::uint64_t rank =
        file.name ? file.name->rank : pass->rank.value_or(reading_.options.rank.value_or(0));
    if (rank > kRankMax)
      return BadInput(tree_.PathOf(path), 0, "rank " + std::to_string(rank),
                      "at most " + std::to_string(kRankMax));
    files_[static_cast<std::uint32_t>(rank)].push_back(std::move(file));
    return Status::Ok();
  }

  // A rank's files lie in one folder; what is deeper belongs to names with slashes.
  Status CheckOneDump(std::uint32_t rank, const std::vector<SglangFile>& files) const {
    const auto folder = [](const SglangFile& file) {
      FilePath above;
      for (const std::string& name : file.path) {
        if (name.find('=') != std::string::npos || &name == &file.path.back()) break;
        above.push_back(name);
      }
      return Joined(above);
    };
    const std::string first = folder(files.front());
    for (const SglangFile& file : files) {
      const std::string other = folder(file);
      if (other != first)
        return BadInput(reading_.options.path, 0,
                        "two dumps of rank " + std::to_string(rank) + ", in '" + first + "' and '" +
                            other + "'",
                        "one: name its folder");
    }
    return Status::Ok();
  }

  const Reading reading_;
  const FileTree tree_;
  std::map<std::uint32_t, std::vector<SglangFile>> files_;
  std::vector<std::uint32_t> ranks_;
};

}  // namespace

Result<std::unique_ptr<Dump>> OpenSglangDump(const Reading& reading) {
  STATCOLLECT_RETURN_IF_ERROR(RefuseRankPattern(reading.options));
  auto tree = FileTree::Open(reading.options.path, &reading.tally);
  if (!tree.ok()) return tree.status();
  auto dump = std::make_unique<SglangDump>(reading, *std::move(tree));
  STATCOLLECT_RETURN_IF_ERROR(dump->Find());
  return std::unique_ptr<Dump>(std::move(dump));
}

}  // namespace statcollect::client::formats
