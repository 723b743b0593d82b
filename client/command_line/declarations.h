// Declares statctl's commands: each function adds one command with its help, its options and the
// function that carries it out. To find one: the functions are below by file; names, and the order
// of `statctl help`, are in command_table.cc.
#ifndef STATCOLLECT_CLIENT_COMMAND_LINE_DECLARATIONS_H_
#define STATCOLLECT_CLIENT_COMMAND_LINE_DECLARATIONS_H_

#include "client/command_line/command_set.h"

namespace statcollect::client {

// --- compare.cc: trainings, runs with each other, the ranks of one
void AddDiff(CommandSet& commands, const std::string& name);
void AddReport(CommandSet& commands, const std::string& name);
void AddZoom(CommandSet& commands, const std::string& name);
void AddWeights(CommandSet& commands, const std::string& name);
void AddOpen(CommandSet& commands, const std::string& name);
void AddRun(CommandSet& commands, const std::string& name);
void AddAb(CommandSet& commands, const std::string& name);
void AddBisect(CommandSet& commands, const std::string& name);
void AddTwins(CommandSet& commands, const std::string& name);
void AddNoise(CommandSet& commands, const std::string& name);
void AddGolden(CommandSet& commands, const std::string& name);
void AddConfig(CommandSet& commands, const std::string& name);
void AddRanks(CommandSet& commands, const std::string& name);

// --- inspect.cc: what one run recorded
void AddSummary(CommandSet& commands, const std::string& name);
void AddTensor(CommandSet& commands, const std::string& name);
void AddSeries(CommandSet& commands, const std::string& name);
void AddMap(CommandSet& commands, const std::string& name);
void AddTop(CommandSet& commands, const std::string& name);
void AddScalars(CommandSet& commands, const std::string& name);
void AddMemory(CommandSet& commands, const std::string& name);
void AddDensity(CommandSet& commands, const std::string& name);
void AddExponents(CommandSet& commands, const std::string& name);

// --- live.cc: runs that are still training, and the values captured from them
void AddSetSteps(CommandSet& commands, const std::string& name);
void AddEvents(CommandSet& commands, const std::string& name);
void AddWatch(CommandSet& commands, const std::string& name);
void AddValues(CommandSet& commands, const std::string& name);
void AddValuesGet(CommandSet& commands, const std::string& name);
void AddValuesList(CommandSet& commands, const std::string& name);
void AddValuesDiff(CommandSet& commands, const std::string& name);

// --- manage.cc: the runs in the store, and the collector
void AddRuns(CommandSet& commands, const std::string& name);
void AddShow(CommandSet& commands, const std::string& name);
void AddRemove(CommandSet& commands, const std::string& name);
void AddPin(CommandSet& commands, const std::string& name);
void AddAdmin(CommandSet& commands, const std::string& name);
void AddCheckpoint(CommandSet& commands, const std::string& name);
void AddAudit(CommandSet& commands, const std::string& name);
void AddStatus(CommandSet& commands, const std::string& name);

// --- transfer.cc: from and to other tools' formats
void AddMove(CommandSet& commands, const std::string& name);
void AddExport(CommandSet& commands, const std::string& name);
void AddImport(CommandSet& commands, const std::string& name);
void AddMigrate(CommandSet& commands, const std::string& name);

// --- bridges.cc: to people's other tools
void AddMcp(CommandSet& commands, const std::string& name);

}  // namespace statcollect::client

#endif  // STATCOLLECT_CLIENT_COMMAND_LINE_DECLARATIONS_H_
