// What the instrumentation of a training notes for statctl
// (agent/python/statagent/_auto/start/sitecustomize.py).
#ifndef STATCOLLECT_CLIENT_COMMANDS_TRAINING_NOTES_H_
#define STATCOLLECT_CLIENT_COMMANDS_TRAINING_NOTES_H_

#include <cstddef>
#include <string>
#include <vector>

namespace statcollect::client {

// Of all processes of the command.
struct TrainingNotes {
  bool python = false, torch = false, optimizer = false;  // one got so far
  bool by_hand = false;                                   // one calls the agent itself
  std::size_t recording = 0;                              // processes that have begun to record
  std::vector<std::string> failed, nothing;  // why one did not: an error; what it lacks
};

// The temporary file of the notes, which is removed at the end.
class NotesFile {
 public:
  NotesFile();
  ~NotesFile();
  NotesFile(const NotesFile&) = delete;
  NotesFile& operator=(const NotesFile&) = delete;
  const std::string& path() const { return path_; }  // empty: it could not be made
  // Lines that are not understood are left out.
  TrainingNotes Read() const;

 private:
  std::string path_;
};

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMANDS_TRAINING_NOTES_H_
