// statcollectord token create | list | revoke: changes the file of tokens; a running collector
// notices by itself.
#ifndef STATCOLLECT_SERVER_DAEMON_TOKEN_COMMAND_H_
#define STATCOLLECT_SERVER_DAEMON_TOKEN_COMMAND_H_

namespace statcollect {

// `argv[0]` is "token". Returns the exit code: 0, or 2 with a message on standard error.
int RunTokenCommand(int argc, const char* const* argv);

}  // namespace statcollect

#endif  // STATCOLLECT_SERVER_DAEMON_TOKEN_COMMAND_H_
