/* The program. Everything is in cli.c, so that tests can link it. */
#include "cli/cli.h"

int main(int argc, char **argv) { return kg_cli_main(argc, argv); }
