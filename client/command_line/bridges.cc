#include "client/command_line/declarations.h"
#include "client/commands/commands.h"

namespace statcollect::client {

void AddMcp(CommandSet& commands, const std::string& name) {
  const auto [app, o] = commands.Add<McpOptions>(
      name, "Answers coding agents (Model Context Protocol)",
      "  claude mcp add statcollect -- statctl mcp     # of the runs in ./statcollect-data, or a "
      "collector's\n"
      "  statctl --collector gpu7:7433 mcp             # on standard input and output\n"
      "  statctl mcp --skill > SKILL.md                # what an agent does when two runs "
      "disagree\n"
      "\nNeeds Python 3.10 with the package mcp: pip install 'statcollect[mcp]'. Its tools only "
      "read; docs/agents.md\n",
      ServeMcp);
  app->add_flag("--skill", o.skill, "Print the skill file for agents, and exit");
}

}  // namespace statcollect::client
