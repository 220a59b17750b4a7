// Where `make console` has not installed them, packages of npm are of any type; languages of highlight.js always are.
declare module "@codemirror/*";
declare module "@lezer/*";
declare module "highlight.js/*";
declare module "lowlight*";
declare module "marked*";
