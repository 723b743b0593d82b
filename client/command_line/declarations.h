// Declares statctl's commands: each function adds one command with its help, its options and the function that carries it out.
// To find one: the functions are below by file, and the order of `statctl help` is in parser.cc.
#ifndef STATCOLLECT_CLIENT_COMMAND_LINE_DECLARATIONS_H_
#define STATCOLLECT_CLIENT_COMMAND_LINE_DECLARATIONS_H_

#include "client/command_line/command_set.h"

namespace statcollect::client {

// --- compare.cc: runs with each other, or the ranks of one
void AddDiff(CommandSet& commands);
void AddReport(CommandSet& commands);
void AddOpen(CommandSet& commands);
void AddRun(CommandSet& commands);
void AddAb(CommandSet& commands);
void AddBisect(CommandSet& commands);
void AddTwins(CommandSet& commands);
void AddNoise(CommandSet& commands);
void AddGolden(CommandSet& commands);
void AddConfig(CommandSet& commands);
void AddRanks(CommandSet& commands);

// --- inspect.cc: what one run recorded
void AddSummary(CommandSet& commands);
void AddSeries(CommandSet& commands);
void AddMap(CommandSet& commands);
void AddTop(CommandSet& commands);
void AddScalars(CommandSet& commands);
void AddMemory(CommandSet& commands);
void AddDensity(CommandSet& commands);
void AddExponents(CommandSet& commands);

// --- live.cc: runs that are still training, and the values captured from them
void AddRecord(CommandSet& commands);
void AddEvents(CommandSet& commands);
void AddWatch(CommandSet& commands);
void AddCapture(CommandSet& commands);
void AddCaptures(CommandSet& commands);
void AddDiffValues(CommandSet& commands);

// --- manage.cc: the runs in the store, and the collector
void AddRuns(CommandSet& commands);
void AddShow(CommandSet& commands);
void AddRemove(CommandSet& commands);
void AddKeep(CommandSet& commands);
void AddCheckpoint(CommandSet& commands);
void AddAudit(CommandSet& commands);
void AddStatus(CommandSet& commands);

// --- transfer.cc: from and to other tools' formats
void AddExport(CommandSet& commands);
void AddImport(CommandSet& commands);
void AddMigrate(CommandSet& commands);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMAND_LINE_DECLARATIONS_H_
