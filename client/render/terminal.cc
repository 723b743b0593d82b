#include "client/render/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string>
#include <string_view>

namespace statcollect::client {
namespace {

constexpr std::size_t kWidthIfUnknown = 100;
constexpr std::size_t kWidthMin = 40;

std::size_t WidthOf(int fd) {
  winsize size{};
  if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kWidthIfUnknown;
  return size.ws_col < kWidthMin ? kWidthMin : size.ws_col;
}

bool WantsColour() {
  const char* no_color = std::getenv("NO_COLOR");
  if (no_color != nullptr && *no_color != '\0') return false;
  const char* term = std::getenv("TERM");
  return term != nullptr && *term != '\0' && std::string_view(term) != "dumb";
}

}  // namespace

Terminal DetectTerminal() {
  Terminal terminal;
  terminal.in = isatty(STDIN_FILENO) != 0;
  terminal.out = isatty(STDOUT_FILENO) != 0;
  terminal.err = isatty(STDERR_FILENO) != 0;
  terminal.colour = terminal.out && WantsColour();
  terminal.colour_err = terminal.err && WantsColour();
  terminal.width = terminal.out ? WidthOf(STDOUT_FILENO) : 0;
  return terminal;
}

bool Confirms(std::string_view question) {
  std::cerr << question << " [y/N] " << std::flush;
  std::string answer;
  std::getline(std::cin, answer);
  return answer == "y" || answer == "Y" || answer == "yes";
}

}  // namespace statcollect::client
