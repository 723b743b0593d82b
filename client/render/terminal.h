// Whether standard input, output and error are terminals, and what they support.
#ifndef STATCOLLECT_CLIENT_RENDER_TERMINAL_H_
#define STATCOLLECT_CLIENT_RENDER_TERMINAL_H_

#include <cstddef>
#include <string_view>

namespace statcollect::client {

struct Terminal {
  bool in = false;          // standard input is a terminal, so questions can be asked
  bool out = false;         // standard output is a terminal
  bool err = false;         // standard error is a terminal, so a progress bar can be drawn
  bool colour = false;      // on standard output; honours NO_COLOR and TERM=dumb
  bool colour_err = false;  // on standard error
  std::size_t width = 0;    // columns of standard output; 0 if it is not a terminal
};

Terminal DetectTerminal();

// Asks on standard error and reads a line. Only "y", "Y" and "yes" are a yes.
bool Confirms(std::string_view question);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_TERMINAL_H_
