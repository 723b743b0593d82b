#include "client/commands/operands.h"

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "client/commands/golden.h"
#include "client/commands/import_spill.h"
#include "client/formats/recognise.h"
#include "client/rpc/own_collector.h"
#include "common/names.h"
#include "common/spill_format.h"

namespace statcollect::client {
namespace {

namespace fs = std::filesystem;

constexpr char kGoldenSuffix[] = ".scg";
constexpr char kSpill[] = "spill", kGolden[] = "golden";

// A folder that is removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::error_code error;
    std::string path = (fs::temp_directory_path(error) / "statctl-XXXXXX").string();
    if (mkdtemp(path.data()) != nullptr) path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code error;
    if (!path_.empty()) fs::remove_all(path_, error);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }  // empty: it could not be made

 private:
  std::string path_;
};

// Of which kind a path is, as import calls it.
Result<std::string> FormatOf(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error))
    return Status(Code::kNotFound,
                  fmt::format("'{}': there is no such file or folder", Printable(path)));
  if (path.ends_with(kGoldenSuffix)) return std::string(kGolden);
  if (HoldsSpills(path)) return std::string(kSpill);
  const auto format = formats::RecogniseDump(path);
  if (format.ok()) return std::string(formats::Name(*format));
  if (format.status().code() != Code::kNotFound) return format.status();
  return Status(
      Code::kInvalidArgument,
      fmt::format("'{}': found no dump in it; expected a golden ({}), a spill file ({}), "
                  "a folder of spill files, or a dump: {}",
                  Printable(path), kGoldenSuffix, spill::kSuffix, format.status().message()));
}

// A run's name after the path, and after the other operand's if they would be equal.
std::string NameAfter(const std::string& path, const std::string& taken) {
  fs::path stem = fs::path(path).lexically_normal();
  if (!stem.has_filename()) stem = stem.parent_path();
  std::string name = stem.stem().string();
  for (char& c : name) {
    if (!ValidateRunName("x" + std::string(1, c)).ok()) c = '-';
  }
  if (!ValidateRunName(name).ok()) name = "run-" + name.substr(0, 100);
  return name == taken ? name + "-b" : name;
}

// Replaces the path by the name of the run that it is loaded as. Returns the exit code, with a
// message if that is not kExitSame.
int Load(Session& session, const std::string& attempted, const std::string& taken,
         std::string& operand) {
  const auto format = FormatOf(operand);
  if (!format.ok()) return session.Fail(attempted, format.status());
  const std::string name = NameAfter(operand, taken);
  if (*format == kGolden) {
    const auto run = LoadGolden(session, operand, name);
    if (!run.ok()) return session.Fail(attempted, run.status());
  } else {
    const ImportOptions options{
        .format = *format, .path = operand, .run = name, .keep_files = true, .silent = true};
    if (const int code = Import(session, options); code != kExitSame) return code;
  }
  operand = name;
  return kExitSame;
}

}  // namespace

bool IsPath(const std::string& operand) {
  return operand.find('/') != std::string::npos || IsGoldenFile(operand) ||
         operand.ends_with(spill::kSuffix);
}

bool IsGoldenFile(const std::string& operand) { return operand.ends_with(kGoldenSuffix); }

int WithFiles(Session& session, const DiffOptions& options,
              const std::function<int(Session&, const DiffOptions&)>& compare) {
  const std::string attempted =
      fmt::format("diff {} {}", Printable(options.run_a), Printable(options.run_b));
  const TemporaryFolder folder;
  if (folder.path().empty())
    return session.Fail(
        attempted,
        {Code::kPermissionDenied,
         "make a temporary folder; expected one this user may write; TMPDIR names another"});
  std::unique_ptr<OwnCollector> own;
  int code = kExitSame;
  {
    Collector collector({.locate = [&](const std::function<bool()>& cancelled) -> Result<Located> {
      auto used = OwnCollector::Use(folder.path(), cancelled);
      if (!used.ok()) return used.status();
      own = *std::move(used);
      return Located{.address = own->address(), .passing = true};
    }});
    const auto cancel = session.collector().OnCancel([&collector] { (void)collector.Cancel(); });
    Session files(session.options(), session.terminal(), collector);
    const Collector::Task task(collector);
    DiffOptions loaded = options;
    code = Load(files, attempted, {}, loaded.run_a);
    if (code == kExitSame) code = Load(files, attempted, loaded.run_a, loaded.run_b);
    if (code == kExitSame) code = compare(files, loaded);
  }  // First the connection: gRPC reads it only within calls, and the collector, when it ends,
     // waits 5 s for who does not answer.
  if (own != nullptr) own->End();
  return code;
}

}  // namespace statcollect::client
