// statctl: parses the command line (command_line/) and runs the command (commands/).
#include <exception>
#include <iostream>
#include <memory>

#include "client/command_line/parser.h"
#include "client/commands/session.h"

namespace statcollect::client {
namespace {

int Main(int argc, const char* const* argv) {
  Parser parser;
  if (const auto exit_code = parser.Parse(argc, argv)) return *exit_code;
  BlockInterrupts();
  const auto collector = std::make_shared<Collector>(parser.collector());
  WatchInterrupts(collector);
  Session session(parser.global(), DetectTerminal(), *collector);
  const int exit_code = parser.Run(session);
  std::cout.flush();
  return std::cout ? exit_code
                   : UsageError("writing the answer failed; is the disk full or the pipe closed?");
}

}  // namespace
}  // namespace statcollect::client

int main(int argc, char** argv) {
  try {
    return statcollect::client::Main(argc, argv);
  } catch (const std::exception& failure) {
    std::cerr << "statctl: " << failure.what() << '\n';
    return statcollect::client::kExitNoAnswer;
  }
}
