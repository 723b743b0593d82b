// statctl mcp: the answers for coding agents, by the Model Context Protocol (docs/agents.md).
#include <string>
#include <vector>

#include "client/commands/commands.h"
#include "client/commands/python_package.h"

namespace statcollect::client {

int ServeMcp(Session& session, const McpOptions& options) {
  std::vector<std::string> words = {"mcp"};
  if (options.skill) words.emplace_back("--skill");
  return RunPackage(session, words);
}

}  // namespace statcollect::client
