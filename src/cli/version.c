/* `kedge --version`: what this build is made of.
 *
 * The libraries stand behind one file each in their modules; here alone they are asked
 * once more, for the versions that are loaded, not those that were compiled against. With
 * backend, processor and GPUs that is what a report of a problem needs.
 */
#include "cli/cli.h"

#include "tensor/device.h"
#include "tensor/selfcheck.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>
#include <yaml.h>
#include <zstd.h>

kg_status kg_cli_version(struct kg_str *out, struct kg_err *err)
{
    char features[256];
    char backend[256];
    char pcre[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre);
    const struct kg_backend *be;

    KG_TRY(kg_backend_open(&be, NULL, err));
    kg_selfcheck_cpu_features(features, sizeof features);
    be->describe(backend, sizeof backend);
    KG_TRY(kg_str_printf(out, err, "kedge %s\n", KG_VERSION));
    KG_TRY(kg_str_printf(
        out, err, "libraries: libyaml %s, PCRE2 %s, utf8proc %s, zstd %s\n",
        yaml_get_version_string(), pcre, utf8proc_version(), ZSTD_versionString()));
    KG_TRY(kg_str_printf(out, err, "backend: %s\n", backend));
    KG_TRY(kg_str_printf(out, err, "processor: %s\ncuda: ", features));
    KG_TRY(kg_device_say(out, err));
    return kg_str_putc(out, '\n', err);
}
