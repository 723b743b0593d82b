// What standard output and error are connected to, and so how much may be done to them.
#ifndef STATCOLLECT_CLIENT_RENDER_TERMINAL_H_
#define STATCOLLECT_CLIENT_RENDER_TERMINAL_H_

#include <cstddef>

namespace statcollect::client {

struct Terminal {
  bool in = false;          // standard input is a terminal: somebody can be asked
  bool out = false;         // standard output is one
  bool err = false;         // standard error is one: a progress bar has a place
  bool colour = false;      // on standard output; honours NO_COLOR and TERM=dumb
  bool colour_err = false;  // on standard error
  std::size_t width = 0;    // columns of standard output; 0 if it is no terminal
};

Terminal DetectTerminal();

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_RENDER_TERMINAL_H_
