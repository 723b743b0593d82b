#include "client/commands/python_package.h"

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "client/commands/child_process.h"
#include "client/commands/page_link.h"
#include "client/exports/python_process.h"

namespace statcollect::client {
namespace {

namespace fs = std::filesystem;

// argv: the package's folder, then the words.
constexpr char kStart[] =
    "import sys; folder = sys.argv.pop(1); sys.path[:] = [p for p in sys.path if p]; "
    "folder in sys.path or sys.path.insert(0, folder); "
    "from statcollect.__main__ import main; sys.exit(main())";

fs::path Self() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error);
}

// What holds the package `statcollect`, in a wheel or a source tree; empty: where Python has it.
std::string PackageFolder() {
  std::error_code error;
  const fs::path bin = Self().parent_path();
  for (const fs::path& folder : {bin / "../..", bin / "../../../client/python"}) {
    if (fs::is_regular_file(folder / "statcollect/__main__.py", error))
      return folder.lexically_normal().string();
  }
  return {};
}

Variables ConnectionOf(Session& session) {
  Variables variables = {{"STATCTL_COLLECTOR", session.collector().address()},
                         {"STATCTL_PYTHON", FindPython()}};
  const tls::Files& files = session.options().tls_files;
  for (const auto& [name, value] :
       {std::pair("STATCTL_TOKEN_FILE", AbsolutePath(session.collector().token_file())),
        std::pair("STATCTL_PROJECT", session.collector().project()),
        std::pair("STATCTL_TLS_CA", AbsolutePath(files.authorities)),
        std::pair("STATCTL_TLS_CERT", AbsolutePath(files.certificate)),
        std::pair("STATCTL_TLS_KEY", AbsolutePath(files.key))}) {
    if (!value.empty()) variables.emplace_back(name, value);
  }
  return variables;
}

}  // namespace

int RunPackage(Session& session, const std::vector<std::string>& words) {
  const Collector::Task task(session.collector());  // Ctrl-C is the program's
  std::vector<std::string> command = {FindPython(), "-B", "-c", kStart, PackageFolder()};
  command.insert(command.end(), words.begin(), words.end());
  command.insert(command.end(), {"--statctl", Self().string()});
  if (const auto status = session.collector().GetStatus(); status.ok()) {
    const std::string origin = PageOrigin(status->http_address(), session.collector().address(),
                                          session.collector().uses_tls());
    if (!origin.empty()) command.insert(command.end(), {"--http", origin});
  } else {
    session.Remark("statctl: " + status.status().message());
  }
  const auto end = RunChild(command, ConnectionOf(session), ChildOutput::kAsIs);
  return end.ok() ? end->code : session.Fail(session.options().command, end.status());
}

}  // namespace statcollect::client
